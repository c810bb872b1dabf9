"""elastic-mx: elastic parameter serving for Apache MXNet and a learned scheduler for its cluster."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="elastic-mx",
    version="0.1.0",
    description="An elastic kvstore for Apache MXNet, and the DL2 scheduler that resizes live training jobs",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.9",
    packages=find_packages(include=["elastic_mx*", "scheduler*", "launcher*"]),
    package_data={"elastic_mx": ["py.typed"], "scheduler": ["data/*"], "launcher": ["site/*"]},
    entry_points={"console_scripts": ["elastic-mx=launcher.cli:main"]},
    install_requires=["numpy>=1.23,<2", "pyzmq>=25", "msgspec>=0.18", "click>=8.1", "rich>=13"],
    extras_require={
        # What a training job needs. mxnet imports distutils, which setuptools supplies on Python 3.12.
        "mxnet": ["mxnet==1.9.1", "setuptools<81"],
        # What the scheduler needs; torch only for the learned policies.
        "scheduler": ["scipy>=1.9", "pyyaml>=6", "torch>=2.2", "tensorboard>=2.14"],
        # What the service needs besides; psycopg only for a record in PostgreSQL.
        "service": [
            "pyyaml>=6",
            "sqlalchemy>=2",
            "alembic>=1.13",
            "fastapi>=0.110",
            "pydantic>=2.6",
            "uvicorn>=0.29",
            "psycopg[binary]>=3.1",
        ],
        "demo": ["scikit-learn", "matplotlib"],
        "test": [
            "pytest>=8",
            "pytest-timeout>=2.3",
            "hypothesis>=6",
            "ruff",
            "mypy",
            "scikit-learn",
            "matplotlib",
        ],
    },
)
