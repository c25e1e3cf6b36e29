#!/usr/bin/env bash
# Download what a GPU machine without a network lacks if it has the usual packages of the field (docs/gpu.md):
#     benchmarks/gpu/wheels.sh FOLDER [python version, 3.12] [architecture, x86_64]
# Runs and leaderboards need only mlflow-skinny with sqlalchemy and alembic from MLflow.
set -euo pipefail
folder=${1:?usage: wheels.sh FOLDER [PYTHON_VERSION] [ARCHITECTURE]}
version=${2:-3.12}
arch=${3:-x86_64}
platforms=()
for glibc in 39 34 28 27 24 17; do platforms+=(--platform "manylinux_2_${glibc}_${arch}"); done
fetch=(python3 -m pip download -qq --only-binary=:all: --implementation cp --python-version "$version"
    "${platforms[@]}" --platform "manylinux2014_${arch}" -d "$folder")
"${fetch[@]}" pydantic # with its dependencies, because pydantic-core must have exactly the matching version
"${fetch[@]}" --no-deps \
    omegaconf==2.4.0 lm-eval==0.4.13 mlflow-skinny==3.17.2 mlflow-tracing==3.17.2 sqlalchemy alembic mako greenlet \
    datasets==5.2.0 dill multiprocess evaluate more-itertools pytablewriter dataproperty mbstrdecoder \
    pathvalidate tabledata tcolorpy typepy nltk zstandard chardet cachetools databricks-sdk fastapi \
    gitpython gitdb smmap importlib-metadata lazy-importer defusedxml opentelemetry-api opentelemetry-sdk opentelemetry-proto \
    opentelemetry-semantic-conventions python-dotenv sqlparse starlette uvicorn google-auth pyasn1 pyasn1-modules \
    cryptography cffi pycparser 'torchao<0.19'
# These are published as source only; they are pure Python, so their wheels fit every machine.
python3 -m pip wheel -qq --no-deps -w "$folder" sqlitedict rouge-score
