# A Spack recipe: put this directory's parent in a repository of yours (spack repo create), then spack install tessera-checkpoint.
from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class TesseraCheckpoint(CMakePackage):
    """Inspect, validate, diff, convert and reshard PyTorch checkpoints, without Python and without loading the model into
    memory."""

    homepage = "https://github.com/OWNER/tessera"
    git = "https://github.com/OWNER/tessera.git"

    license("MIT")

    version("main", branch="main")

    variant("mpi", default=True, description="tessera-mpi and libtessera-mpi")
    variant("cuda", default=False, description="CUDA kernels and libtessera-cuda")

    depends_on("c", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("cjson")
    depends_on("curl")
    depends_on("expat")
    depends_on("isa-l")
    depends_on("openssl")
    depends_on("xxhash")
    depends_on("zstd")
    depends_on("mpi", when="+mpi")
    depends_on("cuda@13:", when="+cuda")

    generator("ninja")

    def cmake_args(self):
        return [
            self.define("TSR_TESTS", False),
            self.define_from_variant("TSR_MPI", "mpi"),
            self.define("TSR_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
        ]

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_program(self):
        Executable(self.prefix.bin.tessera)("--version")
