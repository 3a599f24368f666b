import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Work as small as a dry run's only waits where its threads share busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
