"""Plots as records: figures, panels and series that convert to JSON. `plots.py` draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, Self, get_args

import numpy.typing as npt

from polyvoc.errors import OptionError

# "paper": published by others, drawn hollow; "heat": a row of coloured cells, in panels that hold nothing else
Style = Literal["line", "points", "bars", "steps", "paper", "heat"]
Scale = Literal["linear", "log"]
Numbers = Sequence[float] | npt.NDArray[Any]  # of one dimension
Gaps = Sequence[float | None]


def finite(value: float | None) -> float | None:
    """Return a number that JSON can hold: None for infinity and NaN."""
    return None if value is None or not math.isfinite(value) else float(value)


@dataclass(frozen=True)
class Series:
    """One line, cloud of points, or set of bars; its numbers become tuples of floats, with None for a gap."""

    name: str
    x: Numbers
    y: Numbers | Gaps
    low: Numbers | Gaps = ()  # with high: the interval of each y
    high: Numbers | Gaps = ()
    style: Style = "line"
    color: int | None = None  # number of a colour, the same in all panels; None takes the next, or grey for "paper"
    labels: Sequence[str] = ()  # written beside the points; "" for none

    def __post_init__(self) -> None:
        """Raise OptionError for what cannot be drawn."""
        for name in ("x", "y", "low", "high"):
            object.__setattr__(self, name, tuple(map(finite, getattr(self, name))))
        if len(self.x) != len(self.y) or {len(self.low), len(self.high)} not in ({0}, {len(self.y)}):
            sizes = ", ".join(f"{len(getattr(self, name))} {name}" for name in ("x", "y", "low", "high"))
            raise OptionError(f"series {self.name!r} has {sizes}: give one y per x, and one low and high per y or none")
        object.__setattr__(self, "labels", tuple(self.labels))
        if len(self.labels) not in (0, len(self.x)):
            raise OptionError(f"series {self.name!r} has {len(self.labels)} labels for {len(self.x)} points: give all or none")
        if None in self.x:
            raise OptionError(f"series {self.name!r} has an x that is no number: leave out the point")
        check_choice(self.style, Style, f"style of series {self.name!r}")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        data: dict[str, Any] = {"name": self.name, "x": list(self.x), "y": list(self.y), "style": self.style}
        if self.low:
            data |= {"low": list(self.low), "high": list(self.high)}
        if self.labels:
            data["labels"] = list(self.labels)
        return data if self.color is None else data | {"color": self.color}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the series that `as_dict` described."""
        return cls(**data)


@dataclass(frozen=True)
class Panel:
    """Two axes and what is drawn between them."""

    x: str  # labels of the axes
    y: str
    series: Sequence[Series]
    title: str = ""
    xscale: Scale = "linear"
    yscale: Scale = "linear"
    ticks: Sequence[str] = ()  # names of x = 0, 1, 2, ...
    mark: float | None = None  # cells of a heat map whose interval includes it are framed

    def __post_init__(self) -> None:
        """Raise OptionError for what cannot be drawn."""
        object.__setattr__(self, "series", tuple(self.series))
        object.__setattr__(self, "ticks", tuple(self.ticks))
        check_choice(self.xscale, Scale, "xscale")
        check_choice(self.yscale, Scale, "yscale")
        if len({series.style == "heat" for series in self.series}) > 1:
            raise OptionError(f"panel {self.title!r} mixes a heat map with other series: draw two panels")
        for axis, scale in (("x", self.xscale), ("y", self.yscale)):
            for series in self.series if scale == "log" else ():
                lowest = min((value for value in getattr(series, axis) if value is not None), default=1.0)
                if lowest <= 0:
                    raise OptionError(f"series {series.name!r} has {axis} = {lowest:g}: a log scale begins above 0")
                if series.style == "bars":
                    raise OptionError(f"series {series.name!r}: bars on a log scale have no true size; draw points or steps")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        data = {name: getattr(self, name) for name in ("title", "x", "y", "xscale", "yscale")}
        marked = {} if self.mark is None else {"mark": self.mark}
        return data | marked | {"ticks": list(self.ticks), "series": [series.as_dict() for series in self.series]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the panel that `as_dict` described."""
        return cls(**{**data, "series": [Series.from_dict(series) for series in data["series"]]})


@dataclass(frozen=True)
class Figure:
    """One panel, or several side by side, with a title and a note."""

    title: str
    panels: Sequence[Panel]
    note: str = ""

    def __post_init__(self) -> None:
        """Raise OptionError for what cannot be drawn."""
        object.__setattr__(self, "panels", tuple(self.panels))
        if not self.panels:
            raise OptionError(f"figure {self.title!r} has no panels: give at least one")

    def coloured(self) -> Self:
        """Return the figure with a colour for every series but the grey ones: one name has one colour in all panels."""
        drawn = [series for panel in self.panels for series in panel.series if series.style not in ("paper", "heat")]
        numbers = {series.name: series.color for series in drawn if series.color is not None}
        free = (number for number in count() if number not in set(numbers.values()))
        for series in drawn:
            if series.name not in numbers:
                numbers[series.name] = next(free)

        def painted(series: Series) -> Series:
            fixed = series.style in ("paper", "heat") or series.color is not None
            return series if fixed else replace(series, color=numbers[series.name])

        return replace(self, panels=[replace(panel, series=tuple(map(painted, panel.series))) for panel in self.panels])

    def apart(self) -> list[Self]:
        """Return a figure for each panel, named after both, in the colours of this figure."""
        return [
            replace(self, title=": ".join(filter(None, (self.title, panel.title))), panels=(replace(panel, title=""),))
            for panel in self.coloured().panels
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"title": self.title, "panels": [panel.as_dict() for panel in self.panels], "note": self.note}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the figure that `as_dict` described."""
        return cls(**{**data, "panels": [Panel.from_dict(panel) for panel in data["panels"]]})


def check_choice(value: str, choices: Any, what: str) -> None:
    """Raise OptionError for a value that is none of the choices."""
    if value not in get_args(choices):
        raise OptionError(f"{what} is {value!r}: choose one of {', '.join(get_args(choices))}")
