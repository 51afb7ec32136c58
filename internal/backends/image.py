# SPDX-License-Identifier: Apache-2.0
"""Which image a backend runs: the Model's own, else the first rule that fits; then the pin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from internal.gpu.accelerator import Accelerator, Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRule:
    """Offer an image for a kind of hardware.

    The rule fits when `vendor` is None or the accelerator's, and `architecture` is a prefix of
    the accelerator's. The environment variable `variable` of the manager replaces `image`; a
    rule that fits but has neither leaves the choice to the next one, unless it `is_last`: then
    no later image would run there.
    """

    variable: str
    image: str = ""
    vendor: Vendor | None = None
    architecture: str = ""
    is_last: bool = False

    def fits(self, accelerator: Accelerator) -> bool:
        """Tell whether the rule speaks about this hardware."""
        return self.vendor in {None, accelerator.vendor} and accelerator.architecture.startswith(
            self.architecture
        )


def choose_image(
    rules: Iterable[ImageRule], accelerator: Accelerator, environment: Mapping[str, str]
) -> str:
    """Return the image of the first rule that fits and has one, or the empty string."""
    fitting = _fitting(rules, accelerator)
    images = (environment.get(rule.variable, "").strip() or rule.image for rule in fitting)
    return next(filter(None, images), "")


def image_variables(rules: Iterable[ImageRule], accelerator: Accelerator) -> tuple[str, ...]:
    """Return the variables that can give an image for this hardware, the most specific first."""
    return tuple(rule.variable for rule in _fitting(rules, accelerator))


def _fitting(rules: Iterable[ImageRule], accelerator: Accelerator) -> Iterator[ImageRule]:
    for rule in rules:
        if rule.fits(accelerator):
            yield rule
            if rule.is_last:
                return


def pin(image: str, digest: str) -> str:
    """Return *image* with its tag and digest replaced by *digest*.

    A colon before the last slash belongs to the registry's port and stays.
    """
    repository = image.partition("@")[0]
    head, slash, tail = repository.rpartition("/")
    name = tail.partition(":")[0]
    return f"{head}{slash}{name}@sha256:{digest.removeprefix('sha256:')}"
