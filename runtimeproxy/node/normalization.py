"""How much faster a node's CPUs are than those that requests are meant for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runtimeproxy.node.files import InputError, shortened
from runtimeproxy.node.topology import Processor
from runtimeproxy.slo.schema import CpuNormalization

RATIO: Final = "node.koordinator.sh/cpu-normalization-ratio"
"""Annotation of a Node. Source: policies spec 1.3."""
MIN_RATIO: Final = 1.0
MAX_RATIO: Final = 5.0
"""Source: koord-manager, policies spec 2.3."""
_DECIMALS: Final = 2
"""Of the ratio that koord-manager publishes."""


def normalization_ratio(
    annotations: Mapping[str, str], strategy: CpuNormalization, processor: Processor
) -> float | None:
    """The ratio; None if normalization is disabled.

    The node's annotation counts, else the strategy by the processor, as koord-manager computes it. Source:
    policies spec 2.3.

    Raises:
        InputError: The annotation is invalid, or the strategy has no ratio for this processor.
    """
    text = annotations.get(RATIO)
    if text is not None:
        return _published(text)
    if not strategy.enable:
        return None
    cpu = shortened(repr(processor.model))
    model = strategy.ratio_model.get(processor.model)
    if model is None:
        if strategy.default_ratio is None:
            raise InputError(f"has nothing for the CPU {cpu}, and there is no defaultRatio", "ratioModel")
        return round(strategy.default_ratio, _DECIMALS)
    name, ratio = {
        (False, False): ("baseRatio", model.base_ratio),
        (True, False): ("hyperThreadEnabledRatio", model.hyper_thread_enabled_ratio),
        (False, True): ("turboEnabledRatio", model.turbo_enabled_ratio),
        (True, True): ("hyperThreadTurboEnabledRatio", model.hyper_thread_turbo_enabled_ratio),
    }[processor.has_hyper_threads, processor.has_turbo]
    if ratio is None:
        raise InputError(f"of the CPU {cpu} is missing", f"ratioModel.{name}")
    if not MIN_RATIO <= ratio <= MAX_RATIO:
        raise InputError(f"is {ratio:g}, not in {MIN_RATIO:g} to {MAX_RATIO:g}", f"ratioModel.{name}")
    return round(ratio, _DECIMALS)


def _published(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        raise InputError(f"is not a number: {shortened(repr(text))}", RATIO) from None
    # NaN is in no range.
    if not MIN_RATIO <= ratio <= MAX_RATIO:
        raise InputError(f"is {shortened(text)}, not in {MIN_RATIO:g} to {MAX_RATIO:g}", RATIO)
    return ratio
