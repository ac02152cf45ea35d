"""Settings: the shape of harness.yaml: store, socket, workspaces, models, agents, tools, features.

Read at start only, except `agents`, which are read in the same step as the policies. What has no machinery yet is
still checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from harnessd.config.observing import MetricsSettings, TracesSettings
from harnessd.config.pricing.charge import charges
from harnessd.domain.places import Allowed
from harnessd.policy.assembly.references import BUILTIN_TOOLS, Known
from harnessd.policy.language.figures import Count, Duration, Ratio, Size, Usd
from harnessd.policy.language.freeform import Json
from harnessd.policy.language.shape import Shape, read_shape
from harnessd.policy.language.source import Collected, MapNode, Misread, Scalar, misread, place_of, quoted
from harnessd.policy.language.source import Place as Position
from harnessd.policy.values import BaseUrl, Flag, ListOf, Reader, Secret, SecretRef, Text, Word

_Text = Annotated[str, Text()]
_Texts = Annotated[tuple[str, ...], ListOf(each=Text())]

PROTOCOLS = ("anthropic", "openai-chat", "openai-responses")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePath(Reader):
    """A path; relative ones start at the folder of harness.yaml, `~` is the user's home. `null` = the default."""

    type_name: ClassVar[str] = "path"
    null: bool = False

    def read(self, node: Any) -> Any:
        if self.null and isinstance(node, Scalar) and node.plain and node.text in ("null", "none"):
            return None
        return Text().read(node)


class Written(str):
    """A text that knows where it was written, for problems that show only beside the policies."""

    __slots__ = ("place",)
    place: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMap(Reader):
    """A map of texts; each is `Written`."""

    type_name: ClassVar[str] = "map of texts"

    def read(self, node: Any) -> Any:
        if not isinstance(node, MapNode):
            raise misread(node, f"{quoted(node)} stands where a map is wanted", "write {KEY: text}")
        collected, values = Collected(), {}
        for key, item in node.items():
            try:
                values[key] = Written(Text().read(item))
                values[key].place = place_of(item)
            except Misread as error:
                collected.add(error)
        collected.raise_if_any()
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(Text):
    """A place in a network: a network, an address or a host name, on one port or on all."""

    type_name: ClassVar[str] = "place"

    def value(self, scalar: Scalar) -> str:
        text = Text.value(self, scalar)
        try:
            Allowed.parse(text)
        except ValueError as error:
            raise misread(scalar, str(error), self.bounds) from error
        return text

    @property
    def bounds(self) -> str:
        return "write 10.0.0.0/8, 127.0.0.1:8080, [::1]:80 or git.internal"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUrl(Reader):
    """`sqlite:FILE`, `postgresql://...`, or a secret that holds one; a password is never written here."""

    type_name: ClassVar[str] = "store address"

    def read(self, node: Any) -> Any:
        if isinstance(node, MapNode):
            return Secret().read(node)
        text = Text().read(node)
        if text.startswith("sqlite:") and len(text) > len("sqlite:"):
            return text
        scheme, separator, rest = text.partition("://")
        if separator and scheme in ("postgresql", "postgres"):
            if ":" in rest.rpartition("@")[0]:
                raise misread(node, "a password stands in the address", "write url: {env: NAME} or {credential: NAME}")
            return text
        shown = "this" if "@" in text else quoted(node)  # a password may stand in it
        raise misread(node, f"{shown} is not a store", "write sqlite:FILE or postgresql://HOST/NAME")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricesReader(Reader):
    """`free`, or a map of USD per million tokens."""

    type_name: ClassVar[str] = "prices"

    def read(self, node: Any) -> Any:
        if isinstance(node, Scalar) and node.text == "free":
            return Prices.model_construct(input=0.0, output=0.0, cache_read=0.0, cache_write=0.0)
        if not isinstance(node, MapNode):
            raise misread(node, f"{quoted(node)} is no price", "write free, or {input: 3, output: 15}")
        return read_nested(Prices, node)


class Prices(Shape):
    """USD per million tokens."""

    input: Annotated[float, Usd()] = Field(description="Input that no cache holds.")
    output: Annotated[float, Usd()] = Field(description="Output.")
    cache_read: Annotated[float, Usd()] | None = Field(None, description="Input read from the cache; else as input.")
    cache_write: Annotated[float, Usd()] | None = Field(None, description="Input written to the cache; else as input.")


def read_nested(model: type[Shape], node: MapNode) -> Shape:
    """A shape inside a reader; its problems keep their places."""
    shape, problems = read_shape(model, node)
    if shape is None:
        raise Misread(problems)
    return shape


class Lease(Shape):
    """Who works on a task, and for how long without a sign of life."""

    ttl: Annotated[float, Duration(low="5s", high="10m")] = Field(20.0, description="A lease ends after this.")
    heartbeat: Annotated[float, Duration(low="1s", high="5m")] = Field(5.0, description="It is prolonged so often.")


class Store(Shape):
    """Where all state lives."""

    url: Annotated[str | SecretRef, StoreUrl()] = Field("sqlite:state/harnessd.db", description="The store's address.")
    lease: Lease = Field(Lease(), description="Leases of running tasks.")
    node: _Text | None = Field(None, description="On a server: this daemon's name among others; null: the host's.")
    host: _Text | None = Field(None, description="On a server: the machine that holds the folders; null: this one.")
    state: Annotated[str, FilePath()] = Field(
        "state", description="On a server: the folder of this node for checkpoints and what tools left."
    )


class Restarts(Shape):
    """When the daemon no longer resumes by itself what its own deaths interrupted."""

    unclean: Annotated[int, Count(low="1", high="1M")] = Field(
        3, description="So many unclean starts within `within` pause what they interrupted, for a person."
    )
    within: Annotated[float, Duration(low="1s", high="24h")] = Field(300.0, description="The time they are counted in.")


class Socket(Shape):
    """Where harnessctl talks to the daemon."""

    path: Annotated[str | None, FilePath(null=True)] = Field(
        None, description="null: the user's runtime folder, or the system's."
    )


class PolicyFolder(Shape):
    """Where the operator's policies lie and how changes take effect."""

    dir: Annotated[str, FilePath()] = Field(
        "./policies", description="The folder; absent or empty = built-in defaults."
    )
    watch: Annotated[bool, Flag()] = Field(True, description="false: only SIGHUP and `policy reload` read it again.")
    settle: Annotated[float, Duration(low="0s", high="10s")] = Field(
        0.05, description="Quiet time after the last change before the files are read."
    )
    guard: Annotated[float, Ratio()] = Field(
        0.10, description="A set that would stop more of the running tasks (and more than 2) is held."
    )


class Checkpoints(Shape):
    """What a checkpoint of a workspace covers. What it skips is listed as not covered, and never deleted."""

    max_file: Annotated[int, Size(low="1KiB", high="100GiB")] = Field(
        100 << 20, description="Larger files are not covered."
    )
    exclude: _Texts = Field((), description="Patterns of paths that are not covered.")


class Workspaces(Shape):
    """Where tasks may work."""

    roots: Annotated[tuple[str, ...], ListOf(each=FilePath(), least=1)] = Field(
        ("~/work",), description="Folders below which a workspace must lie."
    )
    mode: Annotated[str, Word(words=("in_place", "copy", "worktree"))] = Field(
        "in_place", description="Work in the folder itself, in a copy, or in a worktree."
    )
    checkpoints: Checkpoints = Field(Checkpoints(), description="What a checkpoint covers.")


class ModelSettings(Shape):
    """One model alias: a service, a model there, a key."""

    protocol: Annotated[str, Word(words=PROTOCOLS)] = Field(description="The wire protocol.")
    base_url: Annotated[str, BaseUrl()] = Field(description="The service's address.")
    model: _Text = Field(description="The service's own name of the model.")
    key: Annotated[SecretRef, Secret()] | None = Field(None, description="Where the key is read; absent: none is sent.")
    window: Annotated[int, Count(low="1k", high="100M")] = Field(description="Context window in tokens.")
    max_output: Annotated[int, Count(low="16", high="10M")] = Field(8192, description="Most tokens of one answer.")
    prices: Annotated[Prices, PricesReader()] | None = Field(
        None,
        description="USD per million tokens, or `free`; absent: as the extra `prices` knows it, else as the dearest.",
    )
    tools: Annotated[bool, Flag()] = Field(True, description="false: it cannot call tools.")
    images: Annotated[bool, Flag()] = Field(True, description="false: it cannot look at images.")


class AgentEnv(Shape):
    """What tool processes of the agent get beside PATH, HOME, LANG, TERM, TMPDIR of the task."""

    pass_: _Texts = Field((), alias="pass", description="Variables of the daemon's environment to hand on.")
    set: Annotated[dict[str, str], TextMap()] = Field({}, description="Variables to set.")


class AgentOutput(Shape):
    """The wanted form of the agent's answer."""

    schema_: Annotated[dict[str, Any], Json()] = Field(alias="schema", description="JSON Schema of the answer.")
    safe: Annotated[Any, Json(maps=False)] = Field(
        None, description="Handed out, marked as degraded, where malformed_output would stop."
    )


class AgentSettings(Shape):
    """One kind of agent: a model, its instructions, its tools."""

    model: _Text = Field(description="A model alias.")
    system: _Text = Field("", description="The system prompt; frozen when a session starts.")
    tools: _Texts = Field(BUILTIN_TOOLS, description="Tools it may call.")
    policies: Annotated[dict[str, str], TextMap()] = Field({}, description="Kind -> policy name, for its tasks.")
    env: AgentEnv = Field(AgentEnv(), description="Environment of its tools.")
    output: AgentOutput | None = Field(None, description="The wanted form of its answer.")
    feature: _Text | None = Field(None, description="The feature its tasks begin with; absent: its own tools.")


class ToolSettings(Shape):
    """A command tool: a program that an agent can call, without Python."""

    command: Annotated[tuple[str, ...], ListOf(each=Text(), least=1)] = Field(
        description="Program and arguments; {name} is an argument of the call. No shell."
    )
    schema_: Annotated[dict[str, Any], Json()] = Field(
        {"type": "object", "properties": {}}, alias="schema", description="JSON Schema of the arguments."
    )
    about: _Text = Field(description="What the model is told of it.")


class HttpRequestSettings(Shape):
    """What the tool http_request may reach."""

    private: Annotated[tuple[str, ...], ListOf(each=Place())] = Field(
        (), description="Places beside the public internet: networks, addresses or host names, with or without a port."
    )


class FeatureSettings(Shape):
    """A named set of tools and instructions of an agent; fallback.chains may degrade one to another."""

    agent: _Text = Field(description="The agent it belongs to.")
    tools: _Texts = Field((), description="Tools it may call, in place of the agent's.")
    add: _Text = Field("", description="Instructions that are added to the agent's.")


class _TreeSource(PydanticBaseSettingsSource):
    """A tree that was read with its places, as a source of settings."""

    def __init__(self, settings_cls: type[BaseSettings], nodes: dict[str, Any]) -> None:
        super().__init__(settings_cls)
        self._nodes = nodes

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._nodes.get(field.alias or field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(self._nodes)


class Settings(BaseSettings, Shape):
    """harness.yaml.

    What the environment says is laid into the tree before it is read (config/environment.py), so that its problems are
    told together with all others; pydantic-settings' own sources, which stop at the first one, are left out.
    """

    model_config = SettingsConfigDict(
        env_prefix="HARNESSD_", env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=False
    )

    reserved: ClassVar[tuple[str, ...]] = ("mcp",)
    store: Store = Field(Store(), description="Where all state lives.")
    socket: Socket = Field(Socket(), description="Where harnessctl talks to the daemon.")
    workers: Annotated[int, Count(low="1", high="10k")] = Field(32, description="Tasks that run at the same time.")
    drain: Annotated[float, Duration(low="0s", high="24h")] = Field(
        60.0, description="Time to finish steps at the end."
    )
    restarts: Restarts = Field(Restarts(), description="Unclean starts of the daemon itself.")
    policies: PolicyFolder = Field(PolicyFolder(), description="The operator's policies.")
    workspaces: Workspaces = Field(Workspaces(), description="Where tasks may work.")
    models: dict[str, ModelSettings] = Field(description="Model aliases.")
    agents: dict[str, AgentSettings] = Field(description="Kinds of agents.")
    default_agent: _Text | None = Field(None, description="The agent of a task that names none.")
    chaos: Annotated[bool, Flag()] = Field(False, description="Whether the kind chaos may inject faults.")
    tools: dict[str, ToolSettings] = Field({}, description="Command tools.")
    features: dict[str, FeatureSettings] = Field({}, description="Features of agents.")
    http_request: HttpRequestSettings = Field(HttpRequestSettings(), description="The tool http_request.")
    metrics: MetricsSettings | None = Field(None, description="Metrics over TCP; absent: on the socket alone.")
    traces: TracesSettings = Field(TracesSettings(), description="Traces of what tasks do.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The tree alone, its nodes as they are: a copy would forget where each value stands."""
        del env_settings, dotenv_settings, file_secret_settings
        return (_TreeSource(settings_cls, cast("InitSettingsSource", init_settings).init_kwargs),)

    @property
    def known(self) -> Known:
        """What policies may name."""
        return Known(
            models=tuple(self.models),
            agents=tuple(self.agents),
            tools=(*BUILTIN_TOOLS, *self.tools),
            features=tuple(self.features),
            feature_agents={name: feature.agent for name, feature in self.features.items()},
            prices={name: charge.output for name, charge in charges(self.models).items()},
            agent_policies={name: agent.policies for name, agent in self.agents.items()},
        )
