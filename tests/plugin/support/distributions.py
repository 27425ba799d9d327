"""Packages as their metadata say it, without files."""

DSL = "nvidia-cutlass-dsl"
OLD = f"{DSL} is 4.5.0, >=4.6.2a0 is required"


def installed(folder, name, version, *requires):
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {one}" for one in requires),
    ]
    (info / "METADATA").write_text("\n".join(lines) + "\n")


def sides(folder):
    """Two folders for PYTHONPATH: of a FlashInfer with what it requires, and of one with an older package."""
    for name, version in (("with", "4.8.1"), ("without", "4.5.0")):
        installed(folder / name, "flashinfer-python", "9.0", f"{DSL}>=4.6.2a0")
        installed(folder / name, DSL, version)
    return folder / "with", folder / "without"
