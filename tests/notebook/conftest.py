"""The kernels that the notebook tests run in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernels import Kernel, kernel_pythons


def name_of(python: str) -> str:
    """A short name for a test's id: the folder of the environment."""
    return "here" if python == kernel_pythons()[0] else python.split("/bin/")[0].split("/")[-1]


@pytest.fixture(scope="module", params=kernel_pythons(), ids=name_of)
def kernel_python(request: pytest.FixtureRequest) -> str:
    """The Python of the kernel: ours, and each of the matrix in `NBAGENT_KERNELS`."""
    return request.param


@pytest.fixture(scope="module")
def kernel(kernel_python: str) -> Iterator[Kernel]:
    """A kernel of its own for each module, without a front end that shows widgets."""
    with Kernel(kernel_python) as kernel:
        yield kernel
