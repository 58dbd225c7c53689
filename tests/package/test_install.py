"""What is installed: the tree, the symbols, the files by which others find the library, and Debian packages."""
import glob
import os
import re
import shutil
import zlib

from harness import ROOT, SAMPLES, load_dcp
from shell import VERSION, check

BUILD = os.path.join(ROOT, "build", "package")
CHECKPOINT = os.path.join(SAMPLES, "dcp_fsdp2")


def installed(t):
    """The installed tree, as `cmake --install` makes it."""
    check("cmake", "--install", BUILD, "--prefix", t.at("usr"))
    return t.at("usr")


def libdir(tree):
    return os.path.dirname(glob.glob(os.path.join(tree, "lib", "**", "libtessera.so"), recursive=True)[0])


def headers_of(*parts):
    """Public headers: of libtessera, or of the libraries beside it."""
    names = {module: {os.path.relpath(p, d) for d in [os.path.join(ROOT, module, "include/tessera")] for p in glob.glob(os.path.join(d, "**", "*.h"), recursive=True)}
             for module in ("core", "native", "native/live")}
    mpi, threads, cuda = {"comm_mpi.h"}, {"comm_threads.h"}, {n for n in names["native/live"] if os.path.basename(n).startswith("gpu")}
    return {"": names["core"] | names["native"] - mpi - threads, "live": names["native/live"] - cuda | threads, "mpi": mpi, "cuda": cuda}[parts[0] if parts else ""]


def test_public_headers_and_no_others_are_installed(t):
    include = os.path.join(installed(t), "include")
    got = {os.path.relpath(p, include) for p in glob.glob(os.path.join(include, "**", "*"), recursive=True) if os.path.isfile(p)}
    public = {os.path.join("tessera", name) for name in headers_of() | headers_of("live") | headers_of("mpi")}
    assert got == public, got ^ public


def declared(tree, headers):
    """Functions and objects that headers declare, as the compiler sees them."""
    source = os.path.join(tree, "all.c")
    with open(source, "w") as f:
        f.writelines(f"#include <tessera/{name}>\n" for name in sorted(headers))
    listing = os.path.join(tree, "declared")
    check("mpicc", "-std=c11", "-fsyntax-only", "-aux-info", listing, "-I", os.path.join(tree, "include"), source)
    with open(listing) as f:
        lines = [line for line in f if any(f"/include/tessera/{name}:" in line for name in headers)]
    names = {m[1] for line in lines if (m := re.search(r"\*/ extern .*?\b(tsr_\w+) \((?!\*)", line))}
    objects = [m for name in headers for m in re.findall(r"^extern const \w+ (?:\*const )?(tsr_\w+)", open(os.path.join(tree, "include/tessera", name)).read(), re.M)]
    return names | set(objects)


def check_exports(library, wanted):
    lines = [line.split() for line in check("nm", "-D", "--defined-only", library).splitlines()]
    exported = {line[2] for line in lines if line[1] in "TDRBVW"} - {"TESSERA_0"}
    assert all(name.endswith("@@TESSERA_0") for name in exported), [n for n in exported if "@@" not in n][:5]
    exported = {name.split("@")[0] for name in exported}
    assert not exported - wanted, f"exported, but in no public header: {sorted(exported - wanted)[:9]}"
    assert not wanted - exported, f"in a public header, but not exported: {sorted(wanted - exported)[:9]}"


def test_exactly_what_public_headers_declare_is_exported(t):
    tree = installed(t)
    wanted = declared(tree, headers_of())
    assert len(wanted) > 200, wanted
    check_exports(os.path.join(libdir(tree), "libtessera.so"), wanted)
    for part in ("live", "mpi"):
        check_exports(os.path.join(libdir(tree), f"libtessera-{part}.so"), declared(tree, headers_of(part)))


def test_the_checkpoint_library_knows_nothing_of_live_state_dicts(t):
    tree = installed(t)
    live = declared(tree, headers_of("live"))
    assert len(live) > 60 and {"tsr_state_dict_save", "tsr_get_model_state_dict", "tsr_comm_threads_run", "tsr_fsdp_gather"} <= live, live
    for form, options in (("so", "-D"), ("a", "-g")):
        names = {line.split()[-1].split("@")[0] for line in check("nm", options, os.path.join(libdir(tree), "libtessera." + form)).splitlines() if line.strip()}
        assert len(names) > 200 and not names & live, names & live
    with open(os.path.join(tree, "include/tessera/tessera.h")) as f:
        included = set(re.findall(r"#include .tessera/([\w/.]+)", f.read()))
    assert len(included) > 20 and not included & headers_of("live"), included & headers_of("live")
    assert "libtessera.so.0.2" in check("readelf", "-d", os.path.join(libdir(tree), "libtessera-live.so"))
    assert "libtessera-live" not in check("readelf", "-d", os.path.join(libdir(tree), "libtessera-mpi.so")), "ranks of checkpoints need none"


def test_every_global_name_of_the_static_library_has_the_prefix(t):
    lines = check("nm", "-g", "--defined-only", os.path.join(libdir(installed(t)), "libtessera.a")).splitlines()
    names = {line.split()[2] for line in lines if len(line.split()) == 3}
    assert len(names) > 200 and all(n.startswith("tsr_") for n in names), [n for n in names if not n.startswith("tsr_")][:9]


def test_soname_and_what_the_library_needs(t):
    dynamic = check("readelf", "-d", os.path.join(libdir(installed(t)), "libtessera.so"))
    assert re.search(r"SONAME.*\[libtessera\.so\.0\.2\]", dynamic) and "RPATH" not in dynamic and "RUNPATH" not in dynamic
    dynamic = check("readelf", "-d", t.at("usr/bin/tessera"))
    assert "libtessera" not in dynamic and "libcrypto" not in dynamic, "the program starts faster without them"


def listing():
    """What consumer/list.c must print, by PyTorch."""
    import torch
    rows = set()
    for name, value in load_dcp(CHECKPOINT).items():
        if isinstance(value, torch.Tensor):
            data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
            rows.add(f"{name} {str(value.dtype).removeprefix('torch.')} {zlib.crc32(data):08x}")
    return rows


def check_programs(directory, env=None):
    got = set(check(os.path.join(directory, "list"), CHECKPOINT, env=env).splitlines())
    wanted = listing()
    assert got == wanted, got ^ wanted
    biases = sum(row.split()[0].endswith("bias") for row in wanted)
    assert check(os.path.join(directory, "count"), CHECKPOINT, env=env).split() == [str(len(wanted)), str(biases)] and biases


def test_a_cmake_project_builds_against_the_installed_tree(t):
    tree = installed(t)
    moved = t.at("moved")
    shutil.move(tree, moved)
    for static in ("OFF", "ON"):
        build = t.at(f"build-{static}")
        check("cmake", "-S", os.path.join(ROOT, "tests/package/consumer"), "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={moved}",
              f"-Dtessera_USE_STATIC={static}", "-DCMAKE_C_FLAGS=-Wall -Wextra -Wpedantic -Werror", "-DCMAKE_CXX_FLAGS=-std=c++17 -Wall -Wextra -pedantic -Werror")
        check("cmake", "--build", build)
        assert ("libtessera.so.0.2" in check("ldd", os.path.join(build, "list"))) == (static == "OFF")
        check_programs(build)
        check("cmake", "-S", os.path.join(ROOT, "tests/package/consumer/live"), "-B", build + "-live", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={moved}",
              f"-Dtessera_USE_STATIC={static}")
        check("cmake", "--build", build + "-live")
        assert ("libtessera-live.so.0.2" in check("ldd", os.path.join(build + "-live", "gathered"))) == (static == "OFF")
        assert check(os.path.join(build + "-live", "gathered")).split() == ["0", "1", "2", "3", "4", "5"]
        check("cmake", "-S", os.path.join(ROOT, "tests/package/consumer/mpi"), "-B", build + "-mpi", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={moved}",
              f"-Dtessera_USE_STATIC={static}")
        check("cmake", "--build", build + "-mpi")
        run = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", os.path.join(build + "-mpi", "ranks")]
        said = check(*run, env={**os.environ, "HOME": t.scratch}).splitlines()
        assert [line for line in said if not line.startswith("[hwloc/")] == ["3"], said  # hwloc complains where there is no /sys


def test_a_project_of_cpp_alone_uses_mpi(t):
    """CMake's MPI::MPI_C is not to be had in it."""
    tree = installed(t)
    os.makedirs(t.at("asks"))
    with open(os.path.join(ROOT, "tests/package/consumer/mpi/ranks.c")) as f:
        source = f.read().replace("tsr_error err = {0}", "tsr_error err{}")
    with open(t.at("asks/ranks.cpp"), "w") as f:
        f.write(source)
    with open(t.at("asks/CMakeLists.txt"), "w") as f:
        f.write("cmake_minimum_required(VERSION 3.22)\nproject(asks LANGUAGES CXX)\nfind_package(tessera 0.2 REQUIRED COMPONENTS mpi)\n"
                "add_executable(ranks ranks.cpp)\ntarget_link_libraries(ranks PRIVATE tessera::mpi)\n")
    for static in ("OFF", "ON"):
        build = t.at(f"build-{static}")
        check("cmake", "-S", t.at("asks"), "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={tree}", f"-Dtessera_USE_STATIC={static}")
        check("cmake", "--build", build)
        run = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", os.path.join(build, "ranks")]
        said = check(*run, env={**os.environ, "HOME": t.scratch}).splitlines()
        assert [line for line in said if not line.startswith("[hwloc/")] == ["2"], said


def test_the_component_of_mpi_names_what_it_needs(t):
    tree = installed(t)
    os.makedirs(t.at("asks"))
    for wish, status in (("REQUIRED COMPONENTS mpi", 1), ("REQUIRED COMPONENTS native OPTIONAL_COMPONENTS mpi", 0)):
        with open(t.at("asks/CMakeLists.txt"), "w") as f:
            f.write(f"cmake_minimum_required(VERSION 3.22)\nproject(asks LANGUAGES C)\nset(CMAKE_DISABLE_FIND_PACKAGE_MPI ON)\nfind_package(tessera 0.2 {wish})\n"
                    "if(TARGET tessera::mpi)\n  message(FATAL_ERROR \"there is no MPI\")\nendif()\n")
        out = check("cmake", "-S", t.at("asks"), "-B", t.at("asks-build"), f"-DCMAKE_PREFIX_PATH={tree}", status=status)
        assert status == 0 or "libopenmpi-dev" in out, out


def test_samples_are_built_without_the_test_libraries(t):
    """The preset package has no tests, as a machine without cmocka."""
    for target in ("train", "fsdp1_state"):
        check("cmake", "--build", BUILD, "--target", target)
    run = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", os.path.join(BUILD, "bin/train"), "--steps", "2", "--save-every", "2", "--checkpoints", t.at("run")]
    os.mkdir(t.at("run"))
    check(*run, env={**os.environ, "HOME": t.scratch})
    assert "weight" in check(os.path.join(BUILD, "bin/tessera"), "inspect", t.at("run/step-2"))
    check(os.path.join(BUILD, "bin/fsdp1_state"), t.at("fsdp1"))


def test_schemas_and_the_manual_of_documents_are_installed(t):
    tree = installed(t)
    names = set(os.listdir(os.path.join(ROOT, "native/cli/schemas")))
    assert set(os.listdir(os.path.join(tree, "share/tessera/schemas"))) == names and len(names) > 10
    assert "tessera.target/1" in check("man", "-M", os.path.join(tree, "share/man"), "-P", "cat", "5", "tessera-formats")


def test_a_missing_component_and_another_version_are_refused(t):
    tree = installed(t)
    for request in ("find_package(tessera 0.2 REQUIRED COMPONENTS core nothing)", "find_package(tessera 0.3 REQUIRED)"):
        os.makedirs(t.at("asks"), exist_ok=True)
        with open(t.at("asks/CMakeLists.txt"), "w") as f:
            f.write(f"cmake_minimum_required(VERSION 3.22)\nproject(asks LANGUAGES C)\n{request}\n")
        out = check("cmake", "-S", t.at("asks"), "-B", t.at("asks-build"), f"-DCMAKE_PREFIX_PATH={tree}", status=1)
        assert "tessera" in out and ("nothing" in out or "0.3" in out), out[-500:]


def test_a_makefile_builds_with_pkg_config(t):
    tree = installed(t)
    pc = os.path.join(libdir(tree), "pkgconfig")
    source = os.path.join(ROOT, "tests/package/consumer")
    env = {**os.environ, "PKG_CONFIG_PATH": pc}
    for name in ("tessera", "tessera-live", "tessera-mpi"):
        check("pkg-config", "--validate", name, env=env)
    assert check("pkg-config", "--libs-only-l", "tessera-live", env=env).split() == ["-ltessera-live", "-ltessera"]
    assert "live" not in check("pkg-config", "--libs-only-l", "tessera", env=env)
    assert check("pkg-config", "--modversion", "tessera", env=env).strip() == VERSION
    for static in (False, True):
        flags = check("pkg-config", "--cflags", "--libs", *(["--static"] if static else []), "tessera", env=env).split()
        if static:
            flags = [os.path.join(libdir(tree), "libtessera.a") if f == "-ltessera" else f for f in flags]
        check("gcc", "-std=c11", "-o", t.at("list"), os.path.join(source, "list.c"), *flags)
        check("g++", "-std=c++17", "-o", t.at("count"), os.path.join(source, "count.cpp"), *flags)
        check_programs(t.scratch, {**os.environ, "LD_LIBRARY_PATH": "" if static else libdir(tree)})


def test_a_project_that_contains_the_sources_builds(t):
    os.makedirs(t.at("asks"))
    shutil.copy(os.path.join(ROOT, "tests/package/consumer/list.c"), t.at("asks"))
    with open(t.at("asks/CMakeLists.txt"), "w") as f:
        f.write(f"cmake_minimum_required(VERSION 3.22)\nproject(asks LANGUAGES C)\nadd_subdirectory({ROOT} tessera)\n"
                "add_executable(list list.c)\ntarget_link_libraries(list PRIVATE tessera::native)\n")
    build = os.path.join(ROOT, "build/contained")  # next to the others and of the same type, so that ccache knows most of it
    shutil.rmtree(build, ignore_errors=True)
    check("cmake", "-S", t.at("asks"), "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DTSR_WERROR={os.environ.get('TSR_WERROR', 'OFF')}")
    check("cmake", "--build", build, "--target", "list", timeout=1200)
    assert set(check(os.path.join(build, "list"), CHECKPOINT).splitlines()) == listing()


def packages(t):
    check("cpack", "-G", "DEB", "-B", t.at("debs"), "--config", os.path.join(BUILD, "CPackConfig.cmake"), cwd=ROOT)
    found = {os.path.basename(p).split("_")[0]: p for p in glob.glob(t.at("debs/*.deb"))}
    assert set(found) == {"tessera-checkpoint", "libtessera0.2", "libtessera-dev", "libtessera-live0.2", "libtessera-live-dev", "tessera-checkpoint-mpi", "libtessera-mpi0.2", "libtessera-mpi-dev"}, found
    return found


# A first upload to Debian would close a request for packaging; CPack writes an ldconfig call beside the trigger.
LINTIAN_EXPECTED = "initial-upload-closes-no-bugs,maintscript-calls-ldconfig"


def test_debian_packages_pass_lintian_and_work_installed(t):
    debs = packages(t)
    out = check("lintian", "--allow-root", "--fail-on", "error,warning", "--suppress-tags", LINTIAN_EXPECTED, *debs.values())
    assert not re.search("^[EW]:", out, re.M), out
    depends = check("dpkg-deb", "-f", debs["libtessera-dev"], "Depends")
    assert f"libtessera0.2 (= {VERSION}-1)" in depends
    assert "libcjson1" in check("dpkg-deb", "-f", debs["tessera-checkpoint"], "Depends") and "libcjson1" in check("dpkg-deb", "-f", debs["libtessera0.2"], "Depends")
    root = t.at("root")
    os.makedirs(os.path.join(root, "var/lib/dpkg/updates"))
    os.makedirs(os.path.join(root, "var/lib/dpkg/info"))
    for name in ("status", "available"):
        open(os.path.join(root, "var/lib/dpkg", name), "w").close()
    out = check("dpkg", f"--root={root}", "--force-not-root", "--force-depends", "--force-script-chrootless", "--install", *debs.values())
    assert "already" not in out
    shown = check("dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f", "${Package} ${db:Status-Status}\n").split("\n")
    assert {"tessera-checkpoint installed", "libtessera0.2 installed", "libtessera-dev installed"} <= set(shown), shown
    tree = os.path.join(root, "usr")
    assert "dcp_fsdp2" in check(os.path.join(tree, "bin/tessera"), "inspect", CHECKPOINT)
    assert "tessera-inspect" in check("man", "-M", os.path.join(tree, "share/man"), "-P", "cat", "tessera-inspect")
    env = {**os.environ, "PKG_CONFIG_SYSROOT_DIR": root, "PKG_CONFIG_PATH": os.path.join(libdir(tree), "pkgconfig")}
    flags = check("pkg-config", "--cflags", "--libs", "tessera", env=env).split()
    check("gcc", "-o", t.at("list"), os.path.join(ROOT, "tests/package/consumer/list.c"), f"-I{tree}/include", f"-L{libdir(tree)}", *flags)
    assert set(check(t.at("list"), CHECKPOINT, env={**os.environ, "LD_LIBRARY_PATH": libdir(tree)}).splitlines()) == listing()
