"""What `__init__.py` loads when it is first used, for type checkers; a test compares them."""

from raidx_fuse.array.array import Array as Array
from raidx_fuse.array.open import open_array as open_array
from raidx_fuse.client import Client as Client
from raidx_fuse.errors import ArrayFailedError as ArrayFailedError
from raidx_fuse.errors import BusyError as BusyError
from raidx_fuse.errors import LosesDataError as LosesDataError
from raidx_fuse.errors import MemberError as MemberError
from raidx_fuse.errors import NoSpaceError as NoSpaceError
from raidx_fuse.errors import RaidxError as RaidxError
from raidx_fuse.errors import ReadOnlyError as ReadOnlyError
from raidx_fuse.errors import Reason as Reason
from raidx_fuse.errors import TimedOutError as TimedOutError
from raidx_fuse.errors import UnrecoverableError as UnrecoverableError
from raidx_fuse.errors import UsageError as UsageError
from raidx_fuse.format.create import create_array as create_array
from raidx_fuse.lab.experiments.simulate import Experiment as Experiment
from raidx_fuse.lab.experiments.simulate import simulate as simulate
from raidx_fuse.members.open import create_member as create_member
from raidx_fuse.members.open import open_member as open_member
from raidx_fuse.members.simulated.model import model_member as model_member
from raidx_fuse.members.simulated.virtual_time import run as _run
from raidx_fuse.version import VERSION as _VERSION

run_virtually = _run
__version__ = _VERSION
__all__: list[str]
