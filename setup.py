"""Builds the extension module of `csrc/`, `torchrlopt._C`: the core and the kernels.

In a checkout, two more are built, which wheels lack: `torchrlopt._tools`, which is `csrc/tools/` (reference
interpreter, verifier) on top of the same core and is never loaded by the product, and
`training.generate._enumerate`, the generator of substitutions. All are linked from one set of objects.

Setuptools recompiles every source in each build. Here every source becomes an object under `build/obj/` with
a depfile next to it, and only changed sources are compiled, in parallel; the rest of the packaging is in
pyproject.toml.

If nvcc is found, `csrc/cuda/` becomes a separate shared library, `torchrlopt/_cuda_probe.so`; without nvcc,
or if it fails, the package works and has no CUDA probe.

Environment: CXX (compiler), CXXFLAGS (appended), NVCC (CUDA compiler;
empty for none), MAX_JOBS (parallel compilers, default all cores),
TORCHRLOPT_WERROR=1 (warnings are errors), TORCHRLOPT_DEBUG=1 (assertions on, -O1).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pybind11
from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BINDINGS = "csrc/bindings/"  # of the core
KERNELS = "csrc/kernels/"
TOOLS = "csrc/tools/"
GENERATOR = "training/generate/csrc"
CUDA_SOURCE = "csrc/cuda/probe.cu"
CUDA_LIBRARY = "torchrlopt/_cuda_probe.so"


def check_platform(platform: str) -> None:
    """Refuse platforms on which the C++ core cannot work, and print a note on untested ones.

    Args:
        platform: as in `sys.platform`.

    Raises:
        SystemExit: the system is Windows.
    """
    if platform in ("win32", "cygwin"):
        raise SystemExit(
            "error: torchrlopt cannot be built on Windows: the compiler's options, the C++ core and the plan "
            "store are written for Linux. Use it on Linux, or in WSL 2."
        )
    if not platform.startswith("linux"):
        print(f"note: torchrlopt is tested on Linux only, not on {platform}; going on", file=sys.stderr)


def compile_flags() -> list[str]:
    """Flags of every compilation; the name of the object directory includes them."""
    flags = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread"]
    flags += ["-O1", "-g", "-UNDEBUG"] if os.environ.get("TORCHRLOPT_DEBUG") == "1" else ["-O3", "-DNDEBUG"]
    if os.environ.get("TORCHRLOPT_WERROR") == "1":
        # GCC 12 wrongly warns about overlapping copies in std::string (GCC bug 105651)
        flags += ["-Werror", "-Wno-error=restrict"]
    return flags + shlex.split(os.environ.get("CXXFLAGS", ""))


def include_flags() -> list[str]:
    """Our headers; those of pybind11 and Python as system headers, which suppresses their warnings."""
    system = [pybind11.get_include(), sysconfig.get_paths()["include"]]
    return ["-Icsrc", f"-I{GENERATOR}"] + [part for path in system for part in ("-isystem", path)]


def is_current(obj: Path) -> bool:
    """True if no file from which the object was made (by its depfile) is newer than the object."""
    depfile = obj.with_suffix(".d")
    if not obj.exists() or not depfile.exists():
        return False
    built = obj.stat().st_mtime_ns
    names = depfile.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    try:
        return all((ROOT / name).stat().st_mtime_ns <= built for name in names)
    except FileNotFoundError:
        return False


def compile_object(cxx: list[str], source: str, obj: Path, flags: list[str]) -> None:
    """Compile one source; the object appears only when it is complete."""
    obj.parent.mkdir(parents=True, exist_ok=True)
    partial = obj.with_suffix(".tmp.o")
    started = source_time_ns(source)
    command = [*cxx, *flags, "-MMD", "-MF", str(obj.with_suffix(".d")), "-c", source, "-o", str(partial)]
    print(f"c++ {source}", flush=True)
    subprocess.run(command, cwd=ROOT, check=True)
    # An edit during the compilation must count as newer than the object.
    os.utime(partial, ns=(started, started))
    os.replace(partial, obj)


def source_time_ns(source: str) -> int:
    """A time not before the last edit of anything that the compiler is about to read."""
    probe = ROOT / "build" / f".clock-{os.getpid()}-{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    probe.touch()
    stamp = probe.stat().st_mtime_ns
    probe.unlink()
    return stamp


def build_cuda(nvcc: str) -> Path | None:
    """Compile the CUDA probe if its source has changed; None, with a message, if nvcc fails."""
    library = ROOT / "build" / "cuda" / Path(CUDA_LIBRARY).name
    source = ROOT / CUDA_SOURCE
    if library.exists() and library.stat().st_mtime_ns >= source.stat().st_mtime_ns:
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    partial = library.with_suffix(".tmp.so")
    print(f"nvcc {CUDA_SOURCE}", flush=True)
    # Code for every major architecture that this nvcc supports, and PTX that drivers compile for newer ones.
    command = [nvcc, "-arch=all-major", "-std=c++17", "-O3", "-shared", "-Xcompiler", "-fPIC"]
    command += ["-cudart", "static", str(source), "-o", str(partial)]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        print(f"note: nvcc refused {CUDA_SOURCE}; there will be no CUDA probe", file=sys.stderr)
        return None
    os.replace(partial, library)
    return library


class IncrementalBuildExt(build_ext):
    """`build_ext` that compiles only changed sources; concurrent builds are safe."""

    def finalize_options(self) -> None:
        """Leave out what is only for development, unless modules are built into the checkout."""
        super().finalize_options()
        if not (self.inplace or getattr(self, "editable_mode", False)):
            self.extensions = [each for each in self.extensions if each.name == "torchrlopt._C"]

    def build_extension(self, ext: Pybind11Extension) -> None:
        """Compile the changed sources of `ext` and link it."""
        import fcntl  # imported here: missing on Windows, which must get the message of `check_platform`

        build = ROOT / "build"
        build.mkdir(exist_ok=True)
        with (build / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._build_locked(ext)

    def _build_locked(self, ext: Pybind11Extension) -> None:
        cxx = shlex.split(os.environ.get("CXX", "g++"))
        flags = compile_flags() + include_flags()
        digest = hashlib.sha256(repr((cxx, compile_flags(), sys.version)).encode()).hexdigest()[:12]
        object_dir = ROOT / "build" / "obj" / digest
        objects = {s: object_dir / Path(s).with_suffix(".o") for s in ext.sources}
        stale = [source for source, obj in objects.items() if not is_current(obj)]
        jobs = int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            runs = [pool.submit(compile_object, cxx, s, objects[s], flags) for s in stale]
        # Compile all sources before raising the first error, so that one build shows all errors.
        failed = [source for source, run in zip(stale, runs, strict=True) if run.exception()]
        if failed:
            raise SystemExit(f"error: the C++ compiler refused {', '.join(failed)}")
        target = Path(self.get_ext_fullpath(ext.name))
        self._link(cxx, list(objects.values()), object_dir / target.name, target)

    def _link(self, cxx: list[str], objects: list[Path], library: Path, target: Path) -> None:
        """Link all objects; skipped if the library was linked from exactly these objects."""
        inputs = library.with_suffix(".inputs")
        listing = "\n".join(f"{obj} {obj.stat().st_mtime_ns}" for obj in objects)
        if not library.exists() or not inputs.exists() or inputs.read_text() != listing:
            partial = library.with_suffix(".tmp.so")
            print(f"link {target.name}", flush=True)
            strip = [] if os.environ.get("TORCHRLOPT_DEBUG") == "1" else ["-s"]
            command = [*cxx, "-shared", "-pthread", *strip, *map(str, objects), "-o", str(partial)]
            subprocess.run(command, cwd=ROOT, check=True)
            os.replace(partial, library)
            inputs.write_text(listing)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(library), str(target))

    def run(self) -> None:
        """Build the extension, and the CUDA probe if nvcc is found."""
        check_platform(sys.platform)
        super().run()
        nvcc = shutil.which(os.environ.get("NVCC", "nvcc"))
        if nvcc is not None:
            built = build_cuda(nvcc)
            target = (ROOT if self.inplace else Path(self.build_lib)) / CUDA_LIBRARY
            if built is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                self.copy_file(str(built), str(target))


def sources_in(folder: str) -> list[str]:
    """C++ sources below a folder, relative to the root."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.cpp"))


def extensions() -> list[Pybind11Extension]:
    """The modules and their sources: all contain the core, each has its own bindings, one the kernels."""
    sources, generator = sources_in("csrc"), sources_in(GENERATOR)
    core = [source for source in sources if not source.startswith((BINDINGS, KERNELS, TOOLS))]
    bindings = [source for source in sources if source.startswith((BINDINGS, KERNELS))]
    tools = [source for source in sources if source.startswith(TOOLS)]
    checkers = [source for source in tools if not source.startswith(f"{TOOLS}bindings/")]
    made = {"torchrlopt._C": core + bindings, "torchrlopt._tools": core + tools}
    if generator:
        made["training.generate._enumerate"] = core + checkers + generator
    return [Pybind11Extension(name, own) for name, own in made.items()]


setup(ext_modules=extensions(), cmdclass={"build_ext": IncrementalBuildExt})
