"""Tasks: hosts to grow, data to train them on, and families of both. Importing this package registers the built-in ones."""

from esper.tolaria.data.formats import Images
from esper.tolaria.data.text import Texts
from esper.tolaria.tasks import builtin
from esper.tolaria.tasks.family import Family, Member
from esper.tolaria.tasks.language import LanguageTask
from esper.tolaria.tasks.registry import TASKS, Task, get, register
from esper.tolaria.tasks.vision import VisionTask

__all__ = [
    "TASKS",
    "Family",
    "Images",
    "LanguageTask",
    "Member",
    "Task",
    "Texts",
    "VisionTask",
    "builtin",
    "get",
    "register",
]
