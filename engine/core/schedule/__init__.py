"""Scheduling: the choice of the rows of each step. Plain Python, independent of torch, link and
clock."""

from continuo.engine.core.schedule.scheduler import Scheduler
from continuo.engine.core.schedule.step import ScheduledRow, StepLoad, StepPlan
from continuo.engine.core.schedule.step_time import StepTimeModel

__all__ = ["ScheduledRow", "Scheduler", "StepLoad", "StepPlan", "StepTimeModel"]
