"""Copy-on-write copies, each used by one thread: csrc/core/shared.h, under the thread sanitiser."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# One thread keeps a copy and lets go of it; the other writes the original once nobody else holds its memory.
# The flag only says that it is time to look; it orders nothing, as a count of references orders nothing.
LETS_GO = """
#include <atomic>
#include <thread>
{include}

int main() {{
  using namespace rlopt;
  {make}
  std::atomic<bool> is_free = false;
  long seen = 0;
  std::thread reader([&, copy = values]() mutable {{
    seen += {read};
    {{ auto gone = std::move(copy); }}
    is_free.store(true, std::memory_order_relaxed);
  }});
  while (!is_free.load(std::memory_order_relaxed)) std::this_thread::yield();
  {write};
  reader.join();
  return seen == 0 ? 0 : 1;
}}
"""

# Several threads copy one object and write their copies.
COPY_AT_ONCE = """
#include <thread>
#include <vector>
#include "core/graph.h"

int main() {
  using namespace rlopt;
  SharedVector<long> values;
  for (int i = 0; i < 2000; ++i) values.push_back(i);
  std::vector<std::thread> threads;
  std::vector<int> is_wrong(3, 0);
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        SharedVector<long> copy = values;
        for (int i = 0; i < 2000; i += 7) copy.set(i, -t);
        const SharedVector<long> second = copy;
        copy.set(0, 5);
        for (int i = 0; i < 2000; ++i) is_wrong[t] |= second[i] != (i % 7 == 0 ? -t : i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 2000; ++i) is_wrong[0] |= values[i] != i;
  return is_wrong[0] | is_wrong[1] | is_wrong[2];
}
"""

VECTOR = LETS_GO.format(
    include='#include "core/graph.h"',
    make="SharedVector<long> values; values.push_back(0);",
    read="copy[0]",
    write="values.set(0, 1)",
)
MATCHES = LETS_GO.format(
    include='#include "match/list.h"',
    make="MatchList values; values.insert(std::make_shared<Match>());",
    read="static_cast<long>(copy[0].match->num_members)",
    write="values.erase(Match{})",
)


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    found = shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler")
    return [found, "-std=c++20", "-O1", "-g", "-pthread", "-fsanitize=thread", f"-I{ROOT / 'csrc'}"]


def run(compiler: list[str], tmp_path: Path, text: str, *sources: str) -> subprocess.CompletedProcess[str]:
    """Compiles and runs a program; the sanitiser ends it with a status of its own where threads race."""
    (tmp_path / "main.cpp").write_text(text)
    program = tmp_path / "main"
    command = [*compiler, str(tmp_path / "main.cpp"), *(str(ROOT / "csrc" / each) for each in sources)]
    built = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
    if "cannot find" in built.stderr and "tsan" in built.stderr:
        pytest.skip("the compiler has no thread sanitiser")
    assert built.returncode == 0, built.stderr
    return subprocess.run([str(program)], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("text", "sources"),
    [(VECTOR, []), (MATCHES, ["match/list.cpp"]), (COPY_AT_ONCE, [])],
    ids=["vector", "matches", "copies_at_once"],
)
def test_copies_in_different_threads_do_not_race(
    compiler: list[str], tmp_path: Path, text: str, sources: list[str]
) -> None:
    done = run(compiler, tmp_path, text, *sources)
    assert done.returncode == 0, done.stderr
