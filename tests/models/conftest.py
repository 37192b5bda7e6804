import numba
import pytest


@pytest.fixture(autouse=True)
def one_numba_thread():
    """Here ranks are threads, and inputs are tiny: more threads only wait for each other."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(before)
