"""Request + facts + CPU -> a `Build` or a refusal. Nothing is started."""

from tfbuild.facts.release_table import is_version as is_version
from tfbuild.facts.toolchains import default_base as default_base
from tfbuild.plan.build import BUILD_PYTHON as BUILD_PYTHON
from tfbuild.plan.build import MACHINES as MACHINES
from tfbuild.plan.build import OVERRIDES as OVERRIDES
from tfbuild.plan.build import PLATFORMS as PLATFORMS
from tfbuild.plan.build import Build as Build
from tfbuild.plan.decision import select as select
from tfbuild.plan.others import alternatives as alternatives
from tfbuild.plan.others import official_build as official_build
from tfbuild.plan.others import unused_by_official_wheel as unused_by_official_wheel
from tfbuild.plan.others import usual as usual
from tfbuild.plan.request import BASES as BASES
from tfbuild.plan.request import Request as Request
from tfbuild.plan.request import RunRequest as RunRequest
from tfbuild.plan.rules import choose_platform as choose_platform
from tfbuild.plan.wheel import newest_official as newest_official
