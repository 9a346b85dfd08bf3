"""Kernlane: where a Linux kernel spends its time while it runs your workload."""

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any, Self, TypeAlias, TypedDict, final

__all__ = [
    "Answer",
    "Error",
    "Machine",
    "Recording",
    "__version__",
    "ask",
    "layout",
    "open",
    "questions",
    "record",
    "replay",
    "tables",
]

__version__: str

_Path: TypeAlias = str | PathLike[str]
_Recordings: TypeAlias = "_Path | Recording | Sequence[_Path | Recording]"
_Machines: TypeAlias = "_Path | Machine | Sequence[_Path | Machine]"
_Value: TypeAlias = None | bool | int | float | str

class _Column(TypedDict):
    type: str
    about: str

class _Table(TypedDict):
    about: str
    columns: dict[str, _Column]

class _Parameter(TypedDict):
    default: str | None
    about: str

class _Question(TypedDict):
    about: str
    sql: str
    parameters: dict[str, _Parameter]

class Error(Exception):
    """What Kernlane cannot do: a wrong question, a damaged recording, an unknown kernel."""

@final
class Answer:
    """Rows of a table or of a question, as an Arrow stream."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
    def rows(self) -> list[dict[str, int | float | str | None]]:
        """All rows as dictionaries, for small answers."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class Machine:
    """A machine whose numbers can be changed: the tables of its file, as dictionaries."""

    def __new__(cls, what: _Path) -> Self: ...
    def __getitem__(self, key: str, /) -> Any: ...
    def __setitem__(self, key: str, value: Any, /) -> None: ...
    def __delitem__(self, key: str, /) -> None: ...
    def __contains__(self, key: str, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def keys(self) -> list[str]: ...
    def to_toml(self) -> str:
        """The text of a machine's file."""

@final
class Recording:
    """A recording that is open, with its kernel. Each table is a method."""

    @property
    def path(self) -> PathLike[str]:
        """The directory of the recording."""
    @property
    def kernel(self) -> PathLike[str]:
        """The kernel that was recorded: its build tree, its vmlinux or its System.map."""
    @property
    def summary(self) -> dict[str, Any]:
        """Its conditions and totals, as `kernlane record --json` prints them."""
    def ask(
        self, question: str, /, *, machines: _Machines | None = None, **parameters: _Value
    ) -> Answer:
        """Answers a question: SQL, or the name of a question."""
    def probe(
        self, *probes: str, workload: _Path | None = None, boot_image: _Path | None = None
    ) -> Recording:
        """The recording with values that are read while its run is executed again."""
    def conditions(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `conditions`."""
    def tasks(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `tasks`."""
    def switches(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `switches`."""
    def services(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `services`."""
    def interrupts(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `interrupts`."""
    def calls(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `calls`."""
    def functions(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `functions`."""
    def blocks(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `blocks`."""
    def branches(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `branches`."""
    def accesses(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `accesses`."""
    def misses(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `misses`."""
    def locks(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `locks`."""
    def probes(
        self, columns: Sequence[str] | None = None, machines: _Machines | None = None
    ) -> Answer:
        """The table `probes`."""

def open(
    path: _Path, *, kernel: _Path | None = None, annotations: _Path | None = None
) -> Recording:
    """Opens a recording (a directory) with its kernel."""

def ask(
    question: str,
    /,
    *,
    machines: _Machines | None = None,
    parameters: dict[str, _Value] | None = None,
    **recordings: Recording,
) -> Answer:
    """Answers a question about several recordings, each with a name."""

def tables() -> dict[str, _Table]:
    """The tables and their columns."""

def questions() -> dict[str, _Question]:
    """The questions that have a name."""

def record(
    workload: _Path | None = None,
    *,
    kernel: _Path,
    output: _Path,
    run: str | None = None,
    set_up: str | None = None,
    copy: Sequence[str] = ...,
    packages: Sequence[str] = ...,
    image: str | None = None,
    vmlinux: _Path | None = None,
    data: bool = False,
    cpus: int = 1,
    turn: int | None = None,
    seed: int = 1,
    memory: int | None = None,
    like: str | None = None,
    cpu_model: str | None = None,
    append: Sequence[str] = ...,
    time_limit: int = 900,
    from_checkpoint: _Path | None = None,
    force: bool = False,
) -> Recording:
    """Records every instruction that a kernel and a workload execute, and opens the recording."""

def layout(
    recordings: _Recordings,
    *,
    output: _Path,
    algorithm: str = "ext-tsp",
    seed: int = 1,
    merge: str = "sum",
    kernel: _Path | None = None,
    part: tuple[float, float] = ...,
    drop_call_padding: bool = False,
) -> dict[str, Any]:
    """Lays the kernel's blocks out for recordings, and writes the order to `output`."""

def replay(
    recording: _Path | Recording,
    *,
    layouts: Sequence[_Path] = ...,
    machines: _Machines | None = None,
    kernel: _Path | None = None,
    part: tuple[float, float] = ...,
    bound: bool = False,
    branches: bool = False,
    within: float = 1.0,
    exact: bool = False,
    order: str = "side-by-side",
) -> dict[str, Any]:
    """Runs a recorded execution again over layouts and machines."""
