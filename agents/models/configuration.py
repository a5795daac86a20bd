"""Which models a search has: from `MILL_MODELS` or `MILL_MODELS_FILE` to chat models that are ready to be called.

    MILL_MODELS="anthropic/claude-sonnet-4-5@50,openai/gpt-5"    # 50 requests a minute; each stands in for the other
    MILL_MODELS_FILE=models.toml                                 # says more of each: see `ModelSettings`

    [models."openai/gpt-5"]
    requests_per_min = 50
    fallbacks = ["openai/gpt-5-mini"]

A model that is only named among the fallbacks needs no table of its own, unless it has limits.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from agents.chat import ChatModel
from agents.errors import ModelSettingsError
from agents.models.fallback import FallbackModel
from agents.models.keys import PROVIDER_VARIABLE, taken_from
from agents.models.provider_client import ProviderClient
from agents.models.provider_model import ProviderModel
from agents.models.rate_limit import Limits, RateLimitedModel
from agents.models.retry import RetryingModel
from agents.provider.wire import Price, Route

MODELS_VARIABLE = "MILL_MODELS"
FILE_VARIABLE = "MILL_MODELS_FILE"
ENVIRONMENT_VARIABLE = "MILL_AGENTS_VENV"
DEFAULT_CONCURRENCY = 128


@dataclass(frozen=True)
class ModelSettings:
    """One model. The names of the fields are those of the file."""

    model: str
    """litellm's name; the name of the table in the file."""
    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    concurrency: int | None = None
    usd_per_million_input_tokens: float | None = None
    """Both prices or none; without, litellm's count."""
    usd_per_million_output_tokens: float | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    api_base: str | None = None
    """Another server that speaks the provider's protocol. It gets no key but the one named here."""
    key_variable: str | None = None
    """The environment variable that holds the key."""
    fallbacks: tuple[str, ...] = ()

    @property
    def limits(self) -> Limits:
        return Limits(self.requests_per_min, self.tokens_per_min, self.concurrency or DEFAULT_CONCURRENCY)

    @property
    def route(self) -> Route:
        price = None
        if self.usd_per_million_input_tokens is not None and self.usd_per_million_output_tokens is not None:
            price = Price(self.usd_per_million_input_tokens / 1e6, self.usd_per_million_output_tokens / 1e6)
        return Route(self.model, self.api_base or "", self.key_variable or "", price)


RATE = re.compile(r"[1-9][0-9]{0,5}")
VERSION = re.compile(r"[0-9]{8}")
ADDRESS = re.compile(r"https?://[!-~]+")
WHOLE_NUMBERS = ("requests_per_min", "tokens_per_min", "concurrency", "max_output_tokens")
NUMBERS = ("usd_per_million_input_tokens", "usd_per_million_output_tokens", "temperature")


def from_environment(environ: Mapping[str, str] = os.environ) -> tuple[ModelSettings, ...]:
    """The models of a search, in order; none where none is configured.

    Raises:
        ModelSettingsError: in one line, with what is wrong where.
    """
    names, file = environ.get(MODELS_VARIABLE, "").strip(), environ.get(FILE_VARIABLE, "").strip()
    if names and file:
        raise ModelSettingsError(f"{MODELS_VARIABLE} and {FILE_VARIABLE} are both set; unset one of them")
    if file:
        return _from_file(Path(file).expanduser())
    return _from_list(names) if names else ()


@contextlib.contextmanager
def opened(
    settings: Sequence[ModelSettings],
    tell: Callable[[str], None],
    environ: MutableMapping[str, str] = os.environ,
    *,
    money_capped: bool = False,
) -> Iterator[tuple[ChatModel, ...]]:
    """The models, for as long as the context lasts; `tell` gets what a user should know of them.

    `money_capped`: somebody asked for a cap on money, which says nothing of a model without a price.

    Provider keys leave `environ` before anything else happens, also where no model is configured.

    Raises:
        ModelSettingsError: `MILL_AGENTS_VENV` names no environment, or money has a cap and a model no price.
        RequestRefusedError: the provider process does not start.
    """
    keys = taken_from(environ)
    if not settings:
        yield ()
        return
    with ProviderClient(agents_python(environ), keys) as client:
        yield composed(settings, client, tell, money_capped=money_capped)


def composed(
    settings: Sequence[ModelSettings],
    client: ProviderClient,
    tell: Callable[[str], None],
    *,
    money_capped: bool = False,
) -> tuple[ChatModel, ...]:
    """Each model within its limits, then its fallbacks within theirs, and all of them again where that may help."""
    by_name = {one.model: one for one in settings}
    for fallback in dict.fromkeys(name for one in settings for name in one.fallbacks):
        by_name.setdefault(fallback, ModelSettings(fallback))
    limited = {name: _limited(one, client, tell, money_capped=money_capped) for name, one in by_name.items()}
    return tuple(
        RetryingModel(FallbackModel([limited[name] for name in (one.model, *one.fallbacks)])) for one in settings
    )


def _limited(
    one: ModelSettings, client: ProviderClient, tell: Callable[[str], None], *, money_capped: bool
) -> ChatModel:
    model = ProviderModel(client, one.route, one.max_output_tokens, one.temperature)
    if not model.price_known and money_capped:
        raise ModelSettingsError(
            f"no price is known for {one.model}, so a cap on money cannot hold it; state usd_per_million_input_tokens "
            f"and usd_per_million_output_tokens (0 if it is free) in its table of {FILE_VARIABLE}, or lift the cap"
        )
    if not model.price_known:
        tell(f"no price is known for {one.model}: its calls count as free; set its two prices in {FILE_VARIABLE}")
    return RateLimitedModel(model, one.limits)


def agents_python(environ: Mapping[str, str] = os.environ) -> Path:
    """The interpreter that has litellm.

    Raises:
        ModelSettingsError: `MILL_AGENTS_VENV` names none.
    """
    folder = environ.get(ENVIRONMENT_VARIABLE, "")
    python = Path(folder).expanduser().absolute() / "bin" / "python"
    if not folder or not os.access(python, os.X_OK):
        where = f"has no Python at {python}" if folder else "is not set"
        raise ModelSettingsError(
            f"{ENVIRONMENT_VARIABLE} {where}: models need an environment of their own, which ./mill sets up"
        )
    return python


def _from_list(names: str) -> tuple[ModelSettings, ...]:
    rates: dict[str, int | None] = {}
    for entry in [entry.strip() for entry in names.split(",")]:
        name, rate = _rated(entry)
        if name in rates:
            raise ModelSettingsError(f"{MODELS_VARIABLE}: {name!r} is there twice; expected each model once")
        rates[name] = rate
    return tuple(
        ModelSettings(name, requests_per_min=rate, fallbacks=tuple(other for other in rates if other != name))
        for name, rate in rates.items()
    )


def _rated(entry: str) -> tuple[str, int | None]:
    """`NAME@50`; but the 20250514 of `vertex_ai/claude-sonnet-4@20250514` belongs to the name."""
    name, at, rate = entry.rpartition("@")
    if not at or VERSION.fullmatch(rate):
        return model_name(entry, MODELS_VARIABLE), None
    if not RATE.fullmatch(rate):
        raise ModelSettingsError(f"{MODELS_VARIABLE}: {entry!r}: expected requests per minute behind @, like @50")
    return model_name(name, MODELS_VARIABLE), int(rate)


def _from_file(path: Path) -> tuple[ModelSettings, ...]:
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ModelSettingsError(f"{FILE_VARIABLE} {path}: {error.strerror}; name a file that can be read") from None
    except ValueError as error:
        raise ModelSettingsError(f"{FILE_VARIABLE} {path}: not TOML: {error}") from None
    tables = content.pop("models", None)
    if content or not isinstance(tables, dict) or not tables:
        raise ModelSettingsError(f'{FILE_VARIABLE} {path}: expected tables [models."NAME"] and nothing else')
    return tuple(_from_table(name, table, f"{path}: models.{name!r}") for name, table in tables.items())


def _from_table(name: str, table: Any, where: str) -> ModelSettings:
    known = [field.name for field in fields(ModelSettings) if field.name != "model"]
    if not isinstance(table, dict):
        raise ModelSettingsError(f"{where}: expected a table")
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ModelSettingsError(f"{where}: unknown setting {unknown[0]!r}; there are {', '.join(known)}")
    checked = {key: _checked(key, value, f"{where}.{key}") for key, value in table.items()}
    one = ModelSettings(model_name(name, where), **checked)
    if (one.usd_per_million_input_tokens is None) != (one.usd_per_million_output_tokens is None):
        raise ModelSettingsError(f"{where}: expected both prices, for input and for output tokens, or none")
    if name in one.fallbacks or len(set(one.fallbacks)) < len(one.fallbacks):
        raise ModelSettingsError(f"{where}.fallbacks: expected other models, each once")
    return one


def _checked(key: str, value: Any, where: str) -> Any:
    if key in WHOLE_NUMBERS:
        if type(value) is not int or value < 1:
            raise ModelSettingsError(f"{where}: found {value!r}, expected a whole number from 1 on")
        return value
    if key in NUMBERS:
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise ModelSettingsError(f"{where}: found {value!r}, expected a number from 0 on")
        return float(value)
    if key == "fallbacks":
        if not isinstance(value, list) or not value:
            raise ModelSettingsError(f"{where}: found {value!r}, expected a list of models")
        return tuple(model_name(name, where) for name in value)
    if key == "key_variable":
        if not isinstance(value, str) or not PROVIDER_VARIABLE.fullmatch(value):
            raise ModelSettingsError(f"{where}: expected the name of a variable like MY_API_KEY, not the key itself")
        return value
    if not isinstance(value, str) or not ADDRESS.fullmatch(value):
        raise ModelSettingsError(f"{where}: found {value!r}, expected an http address")
    return value


def model_name(name: Any, where: str) -> str:
    """A name that litellm may know.

    Raises:
        ModelSettingsError: it cannot be one.
    """
    if not isinstance(name, str) or not name or not name.isascii() or not name.isprintable() or " " in name:
        raise ModelSettingsError(f"{where}: found {name!r}, expected a model as litellm names it, e.g. openai/gpt-5")
    return name
