"""What a section finds: figures, each with the ceilings measured beside it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value (the median of `samples`) and the ceilings of the same run."""

    section: str
    what: str
    unit: str
    samples: tuple[float, ...]
    beside: dict[str, float] = field(default_factory=dict)
    note: str = ""
    higher_is_better: bool = True

    @property
    def value(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    @property
    def ratios(self) -> dict[str, float]:
        """The value over each ceiling measured beside it."""
        return {name: self.value / ceiling for name, ceiling in self.beside.items() if ceiling}

    def as_json(self) -> dict[str, object]:
        """Return the figure for `latest.json`."""
        return {
            "section": self.section,
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "samples": list(self.samples),
            "beside": self.beside,
            "ratios": self.ratios,
            "note": self.note,
        }


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the value below which `fraction` of `values` lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]
