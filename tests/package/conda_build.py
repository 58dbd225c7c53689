"""rattler-build over the conda recipe: conda_build.py RECIPE SOURCE OUTPUT. Renders it as it stands, then builds and tests it
with what this machine has instead of conda's compilers and libraries: no conda channel is needed."""
import sys

import rattler_build as r

recipe, source, output = sys.argv[1:]
stage0 = r.Stage0Recipe.from_file(recipe)
variants = r.VariantConfig({"c_compiler": ["gcc"], "c_compiler_version": ["14"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]})
rendered = stage0.render(variants)
assert len(rendered) == 1, rendered
print("rendered:", rendered[0].recipe.package.name, rendered[0].recipe.package.version)

alone = stage0.to_dict()
alone.pop("requirements")
alone["source"] = [{"path": source}]
results = r.Stage0Recipe.from_dict(alone).run_build(tool_config=r.ToolConfiguration(test_strategy="native"), output_dir=output, channels=[],
                                                    env_isolation=r.EnvironmentIsolation.CONDA_BUILD)
for result in results:
    print("built:", result.name, result.version, *result.packages)
