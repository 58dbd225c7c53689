"""What is installed in each way works where it is: in scratch prefixes."""
import glob
import os
import subprocess
import sys
import zipfile

from harness import ROOT, SAMPLES
from shell import check
from viewer import expect_page

BUILD = os.path.join(ROOT, "build/package")
CHECKPOINT = os.path.join(SAMPLES, "dcp_fsdp2")


def wheel():
    return glob.glob(os.path.join(ROOT, "build/wheel/dist/tessera_checkpoint-*.whl"))[0]


def test_the_wheel_brings_the_page_and_the_schemas(t):
    check(sys.executable, "-m", "venv", "--without-pip", t.at("venv"))
    check(sys.executable, "-m", "pip", "--python", t.at("venv/bin/python"), "install", "--no-index", "--disable-pip-version-check", wheel())
    os.makedirs(t.at("bin"))
    os.symlink(t.at("venv/bin/tessera"), t.at("bin/tessera"))  # as pipx does
    for program in ("venv/bin/tessera", "bin/tessera"):
        expect_page([t.at(program)], CHECKPOINT)
    assert sorted(os.listdir(t.at("venv/share/tessera/schemas"))) == sorted(os.listdir(os.path.join(ROOT, "native/cli/schemas")))


def test_the_wheel_has_one_name_and_says_what_it_needs(t):
    archive = zipfile.ZipFile(wheel())
    metadata = archive.read(next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))).decode().split("\n\n")[0].splitlines()
    assert "Name: tessera-checkpoint" in metadata and "Requires-Python: >=3.9" in metadata, metadata


def test_the_installed_tree_shows_its_page(t):
    check("cmake", "--install", BUILD, "--prefix", t.at("usr"))
    expect_page([t.at("usr/bin/tessera")], CHECKPOINT)


def test_the_packages_have_the_page_the_command_and_one_name(t):
    check("cpack", "-G", "DEB", "-B", t.at("debs"), "--config", os.path.join(BUILD, "CPackConfig.cmake"), cwd=t.scratch)
    deb, = glob.glob(t.at("debs/tessera-checkpoint_*.deb"))
    check("dpkg-deb", "-x", deb, t.at("root"))
    expect_page([t.at("root/usr/bin/tessera")], CHECKPOINT)
    fields = dict(line.split(": ", 1) for line in check("dpkg-deb", "-f", deb, "Package", "Conflicts", "Replaces", "Depends", "Recommends").splitlines())
    assert (fields["Package"], fields["Conflicts"], fields["Replaces"]) == ("tessera-checkpoint", "tessera", "tessera"), fields
    assert "libmicrohttpd" not in fields["Depends"] + fields.get("Recommends", ""), fields


def test_a_package_is_not_made_without_the_page(t):
    """With a copy of the configuration that names another source directory, as a checkout in which web/build has not been run."""
    with open(os.path.join(BUILD, "native/package/need_page.cmake")) as f:
        script = f.read()
    with open(t.at("need_page.cmake"), "w") as f:
        f.write(script.replace(os.path.join(ROOT, "web/dist"), t.at("web/dist")))
    assert "run web/build first" in check("cmake", "-P", t.at("need_page.cmake"), status=1)
    check("cmake", "-P", os.path.join(BUILD, "native/package/need_page.cmake"))


def test_a_program_without_its_page_says_what_to_run(t):
    check("cmake", "--install", BUILD, "--prefix", t.at("usr"))
    page = t.at("usr/share/tessera/viewer")
    os.rename(page, page + "-gone")
    p = subprocess.run([t.at("usr/bin/tessera"), "view", CHECKPOINT], capture_output=True, text=True, timeout=60)
    assert p.returncode == 2 and "run web/build in Tessera's source directory" in p.stderr, p
