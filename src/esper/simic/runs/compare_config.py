"""The settings of a comparison, and who takes part in it. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from esper.leyline.config import Count, NonNegativeInt, Range, check_ranges, from_mapping, read_toml
from esper.leyline.errors import ConfigError, RunError, unknown
from esper.leyline.seeds import Purpose
from esper.simic.growth.config import CARRIED_OUT, ControllerRunConfig, GrowthConfig, processes
from esper.simic.growth.naming import decider_names, find_policy
from esper.simic.runs.practice_config import permissive
from esper.tamiyo import CONTROLLERS, FixedConfig, HeuristicConfig, RandomConfig
from esper.tamiyo.policy.policy_header import POLICY_FILE
from esper.tolaria.training.config import TrainingConfig

STATIC_FINAL, STATIC_FLOPS, STATIC_LARGEST, SWEEP = "static-final", "static-final-flops", "static-largest", "sweep"
SEARCHED, TUNED = "searched", "tuned"
BASELINES = ("wait", "random", "fixed", SEARCHED, "heuristic", TUNED, STATIC_FINAL, STATIC_LARGEST, SWEEP)
"""What policies can be compared with, in this order."""
RESERVED = (*BASELINES, STATIC_FLOPS)
"""Names of arms that no file can have."""
FROM_FILES = {
    SEARCHED: "--searched TASK=FILE for each task: a TOML file with a [fixed] table, which esper headroom writes",
    TUNED: "--tuned FILE: a TOML file with a [heuristic] table, which esper tune heuristic writes",
}
"""What the arms need that are there only with a file for them."""
PLAN_FILE = "plan.toml"
"""In the folder of a search for headroom: the best single plan, for `--config` and comparisons."""
TABLES = ("best.toml", PLAN_FILE)
"""Settings of a controller in a run folder: those that were tuned, and the plan that was found in a search for headroom."""
FILES = (POLICY_FILE, *TABLES)
"""What is looked for in a run folder, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig(GrowthConfig):
    """Everything that decides a comparison. Written to config.toml, from which the same one starts again."""

    changeable: ClassVar[tuple[str, ...]] = CARRIED_OUT
    kind: Literal["compare"] = "compare"
    policies: tuple[str, ...] = ()
    """Whom to compare: controllers and policies that ship by their names, run folders, policy files, or TOML files with the settings of a
    controller."""
    arms: tuple[str, ...] = ("wait",)
    """Baselines to compare with: wait, random, fixed, searched, heuristic, tuned, static-final, static-largest, sweep; or all."""
    task: tuple[str, ...] = ("digits",)
    """What hosts are trained on; of several tasks, each has all the seeds, and they are played one after another."""
    seeds: Count = 200
    """Host seeds, the same for every arm; they come from a range that nothing else uses."""
    first: NonNegativeInt = 0
    """How many seeds of that range are passed over first."""
    tuned: Path | None = None
    """A TOML file with a [heuristic] table, such as the best.toml of a search: the arm `tuned`."""
    plan: Path | None = None
    """A TOML file with a [fixed] table, such as the best plan of a search for headroom: what the arm `fixed` does."""
    searched: dict[str, Path] = field(default_factory=dict)
    """For each task a TOML file with a [fixed] table, or the run folder of a search for headroom, e.g. digits=runs/digits-headroom-001: the
    arm `searched`, which does on each task what was found for it alone."""
    sizes: Annotated[int, Range(2, 64)] = 4
    """Networks in a sweep, from the bare host to the largest."""
    together: Count = 16
    """Hosts of a task that an arm plays at once; a checkpoint follows, so no more than these are lost. A GPU does well with 256."""
    abreast: bool = False
    """Arms play their hosts at once rather than one after another, so that a fleet has several hosts of every architecture. How long an arm
    took is then its share by operations of what all took."""
    workers: Annotated[int, Range(1, 1024)] | None = None
    """Processes that grow hosts; by default one for each core, on a GPU one for every 32 hosts, up to eight and half of the cores."""
    control: bool = False
    """Of no use here: the arm `wait` is every host without growth."""
    checkpoint_every: Count = 1
    """Rounds between checkpoints; a round is one arm on so many hosts, or all arms that play at once."""
    training: TrainingConfig = field(default_factory=permissive)
    heuristic: HeuristicConfig = field(default_factory=HeuristicConfig)
    fixed: FixedConfig = field(default_factory=FixedConfig)
    random: RandomConfig = field(default_factory=RandomConfig)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.task:
            raise ConfigError("'task' is empty; expected the name of a task, or several")
        if again := [task for task in self.task if self.task.count(task) > 1]:
            raise ConfigError(f"'task' has {again[0]!r} twice; the same hosts again would only look like more of them")
        if self.control:
            raise ConfigError("'control' is true; a comparison has the arm 'wait' in its place")

    @property
    def seed(self) -> int:
        """The first host seed."""
        return self.host_seeds[0]

    @property
    def host_seeds(self) -> range:
        """The seeds that every arm plays."""
        return Purpose.EXAMINATION.seeds(self.seeds, self.first)

    @property
    def baselines(self) -> tuple[str, ...]:
        """The baselines that are asked for, in the order of BASELINES. Raises UnknownNameError for one that does not exist."""
        for name in self.arms:
            if name not in (*BASELINES, "all"):
                raise unknown("arm", name, (*BASELINES, "all"))
        given = {name for name, file in ((SEARCHED, self.searched), (TUNED, self.tuned)) if file}
        for name, needed in FROM_FILES.items():
            if name in self.arms and name not in given:
                raise ConfigError(f"the arm {name!r} needs {needed}")
        wanted = given | ({*BASELINES} - {*FROM_FILES} if "all" in self.arms else {*self.arms})
        return tuple(name for name in BASELINES if name in wanted)

    def processes(self, *, gpu: bool) -> int:
        """In how many processes hosts grow."""
        arms = len(self.policies) + len(self.baselines) if self.abreast else 1
        return processes(self.workers, arms * min(self.together, self.seeds), gpu=gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Somebody who decides: a policy by its file, or a controller with its settings."""

    name: str
    """Of the arm."""
    policy: Path | None = None
    controller: str = ""
    settings: Any = None
    source: Path | None = None
    """The file that decides what it does; another content is another contender."""
    by_task: Mapping[str, Contender] = field(default_factory=dict)
    """Who decides in its place on each task, where that is not the same for all."""

    def on(self, task: str) -> Contender:
        """Who decides on a task."""
        return self.by_task[task] if self.by_task else self


def contenders(config: CompareConfig) -> list[Contender]:
    """The policies that were named, each under a name of its own. Controllers of plug-ins are registered before."""
    if not config.policies:
        expected = "the name of a controller or policy, a run folder or a policy file: esper compare heuristic"
        raise ConfigError(f"no policy to compare; expected {expected}")
    found = [_contender(text, config) for text in config.policies]
    names = [each.name for each in found]
    clear = [names.count(each.name) == 1 and (each.source is None or each.name not in RESERVED) for each in found]
    named = [each if is_clear else replace(each, name=text) for each, is_clear, text in zip(found, clear, config.policies, strict=True)]
    for number, each in enumerate(named):
        if each.name in [other.name for other in named[:number]]:
            raise ConfigError(f"{each.name!r} is named twice; expected policies that differ")
    return named


def rule(name: str, config: CompareConfig) -> Contender:
    """A controller by its name, with the settings that the comparison has for it."""
    if name == "fixed" and config.plan is not None:
        return from_table(config.plan, name, table=name)
    settings = {"heuristic": config.heuristic, "fixed": config.fixed, "random": config.random}
    return Contender(name=name, controller=name, settings=settings.get(name))


def searched(config: CompareConfig) -> Contender:
    """The plan that a search found for each task alone. Raises ConfigError for tasks without plan and plans without task."""
    for task in config.searched:
        if task not in config.task:
            raise ConfigError(f"--searched: there is a plan for {task!r}, which is not among the tasks: {', '.join(config.task)}")
    for task in config.task:
        if task not in config.searched:
            raise ConfigError(f"--searched: there is no plan for {task!r}; expected one for each task: {task}=FILE")
    found = {task: from_table(_plan(path), f"{SEARCHED} on {task}", table="fixed") for task, path in config.searched.items()}
    return Contender(name=SEARCHED, by_task=found)


def _plan(path: Path) -> Path:
    """The file of a plan, which a search for headroom has in its folder once it is finished."""
    if not path.is_dir():
        return path
    if not (path / PLAN_FILE).is_file():
        raise RunError(f"{path} holds no plan; expected the folder of a finished esper headroom, with {PLAN_FILE}, or a TOML file")
    return path / PLAN_FILE


def from_table(path: Path, name: str, table: str = "") -> Contender:
    """The controller whose settings a TOML file has in a table of its name. table: which one it must be."""
    content = read_toml(path)
    if not table and "settings" in content:  # of a plug-in's controller, as a run under a controller has them
        run = from_mapping(ControllerRunConfig, content, source=str(path))
        if run.controller not in CONTROLLERS:
            raise unknown("controller", run.controller, CONTROLLERS)
        settings = from_mapping(CONTROLLERS[run.controller].config, run.controller_config() or {}, source=f"{path}: settings")
        return Contender(name=name, controller=run.controller, settings=settings, source=path)
    tables = [key for key, value in content.items() if key in CONTROLLERS and isinstance(value, dict)]
    controller = content["controller"] if content.get("controller") in tables else table or (tables[0] if len(tables) == 1 else "")
    if controller not in tables or (table and controller != table):
        expected = f"a [{table}] table" if table else f"one table named after a controller: {', '.join(CONTROLLERS)}"
        raise ConfigError(f"{path} has {f'the tables {sorted(tables)}' if tables else 'no settings of a controller'}; expected {expected}")
    settings = from_mapping(CONTROLLERS[controller].config, content[controller], source=f"{path}: {controller}")
    return Contender(name=name, controller=controller, settings=settings, source=path)


def _contender(text: str, config: CompareConfig) -> Contender:
    if text in CONTROLLERS:
        return rule(text, config)
    policy, path = find_policy(text), Path(text)
    if policy is not None and policy.name:
        return Contender(name=policy.name, policy=policy.path, source=policy.path)
    if path.is_dir():
        for name in FILES:
            if (path / name).is_file():
                return _from_file(path / name, path.name)
        raise RunError(f"{path} holds no policy to compare; expected a run folder with one of {', '.join(FILES)}")
    if policy is not None:
        return _from_file(path, path.parent.name if path.name in FILES and path.parent.name else path.stem)
    raise unknown("policy", text, decider_names())


def _from_file(path: Path, name: str) -> Contender:
    return from_table(path, name) if path.suffix == ".toml" else Contender(name=name, policy=path, source=path)
