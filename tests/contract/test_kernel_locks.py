"""What both kernels promise about the lock of a log's state."""

import threading
import time

import pytest

WAIT_S = 60


@pytest.fixture(params=["pure", "_native"])
def lock(request):
    """A lock of the kernel, interpreted and compiled; skipped where it was not built."""
    kernel = pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)
    return kernel.StateLock()


def elsewhere(call):
    """What a call returns, or raises, in another thread."""
    found = []

    def run():
        try:
            found.append(call())
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S)
    assert found, "the call did not return"
    return found[0]


def test_its_owner_takes_it_again_and_others_only_when_it_was_given_back_as_often(lock):
    assert lock.acquire()
    with lock:
        assert lock.acquire(False)
        assert not elsewhere(lambda: lock.acquire(False))
        lock.release()
    assert not elsewhere(lambda: lock.acquire(False))
    lock.release()

    def take_and_give():
        taken = lock.acquire(False)
        lock.release()
        return taken

    assert elsewhere(take_and_give)


def test_only_its_owner_gives_it_back(lock):
    with pytest.raises(RuntimeError):
        lock.release()
    with lock:
        assert isinstance(elsewhere(lock.release), RuntimeError)
        assert not elsewhere(lambda: lock.acquire(False))


def test_what_raises_in_it_gives_it_back(lock):
    with pytest.raises(KeyError), lock:
        raise KeyError
    with pytest.raises(RuntimeError):
        lock.release()


def test_all_who_sleep_at_it_get_it_one_after_the_other(lock):
    inside, most, done = 0, 0, []

    def work(number):
        nonlocal inside, most
        for turn in range(30):
            with lock:
                inside += 1
                most = max(most, inside)
                time.sleep(0 if turn % 5 else 0.001)  # others run, and meet it taken
                inside -= 1
        done.append(number)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(6)]
    with lock:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(done) == list(range(6))
    assert most == 1
    assert lock.acquire(False)
