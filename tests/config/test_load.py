"""Load: harness.yaml, the environment over it, the policy folder; all problems at once; secrets."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessd.config.advice import unset_secrets
from harnessd.config.environment import resolve_secret
from harnessd.config.files import builtin_folder, read_folder
from harnessd.config.load import ConfigProblems, builtin_policies, find_config, load, read_policies
from harnessd.domain.failure import ConfigError
from harnessd.policy.values import SecretRef
from tests.config.conftest import HARNESS, Site

ROOT = Path(__file__).resolve().parents[2]


def problems(site: Site) -> list[str]:
    with pytest.raises(ConfigProblems) as caught:
        site.load()
    return [str(problem).replace(f"{site.root}/", "") for problem in caught.value.problems]


# --- harness.yaml -----------------------------------------------------------------------------------------------------


def test_the_shipped_harness_yaml_is_a_good_first_configuration() -> None:
    loaded = load(ROOT / "harness.yaml", {"HOME": "/home/x"})
    assert loaded.settings.default_agent == "coder"
    assert loaded.settings.models["primary"].key == SecretRef("env", "ANTHROPIC_API_KEY")
    assert not loaded.warnings
    # the repository's own policies/ is both the operator's folder and what is shipped
    assert [policy.shape for policy in loaded.policies.policies.values()] == [
        policy.shape for policy in builtin_policies().policies.values()
    ]


def test_paths_start_at_the_folder_of_harness_yaml(site: Site) -> None:
    site.config.write_text(
        HARNESS
        + 'store: {url: "sqlite:state/x.db"}\nsocket: {path: run/s}\nworkspaces: {roots: [~/work, ../w, /abs]}\n'
        "tools: {status: {command: [./bin/status, x], about: S.}, other: {command: [python3], about: P.}}\n"
    )
    loaded = site.load()
    assert loaded.settings.store.url == f"sqlite:{site.root}/state/x.db"
    assert loaded.settings.socket.path == f"{site.root}/run/s"
    assert loaded.settings.workspaces.roots == (f"{site.root}/work", str(site.root.parent / "w"), "/abs")
    assert loaded.settings.tools["status"].command == (f"{site.root}/bin/status", "x")
    assert loaded.settings.tools["other"].command == ("python3",)
    assert loaded.policies_dir == site.policies


FEATURES = "features: {full: {agent: coder, tools: [bash]}, basic: {agent: other, tools: [read_file]}}\n"
TWO_AGENTS = "  coder: {model: primary, feature: %s}\n  other: {model: primary}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agents:\n  a: {model: m}\n", 'the key "models" is missing'),
        ("models: {}\nagents: {}\n", "no models are declared"),
        (HARNESS + "worker: 3\n", 'harness.yaml:6:1: unknown key "worker": did you mean "workers"?'),
        (HARNESS + "workers: 0\n", "harness.yaml:6:10: 0 is out of bounds: write 1..10k"),
        (HARNESS + "default_agent: codr\n", 'harness.yaml:6:16: no agent "codr": did you mean "coder"?'),
        (HARNESS.replace("model: primary}", "model: primry}"), 'no model "primry": did you mean "primary"?'),
        (HARNESS.replace("{model: primary}", "{model: primary, tools: [bsh]}"), 'no tool "bsh": did you mean "bash"?'),
        (HARNESS.replace("{model: primary}", "{model: primary, policies: {budgt: x}}"), '"budgt" is no kind of a task'),
        (HARNESS.replace("{model: primary}", "{model: primary, policies: {budget: x}}"), 'coder: no budget policy "x"'),
        (HARNESS.replace("  coder: {model: primary}", TWO_AGENTS % "ful") + FEATURES, 'no feature "ful": did you'),
        (HARNESS.replace("  coder: {model: primary}", TWO_AGENTS % "basic") + FEATURES, "belongs to agent other"),
        (
            HARNESS.replace("prices: free", "prices: free, tools: false"),
            "cannot call tools, and the agent has some: write",
        ),
        (
            HARNESS.replace("{model: primary}", "{model: primary, output: {schema: {type: objekt}}}"),
            "not a JSON Schema",
        ),
        (
            HARNESS.replace("{model: primary}", "{model: primary, output: {schema: {$ref: 'http://x/y'}}}"),
            "leads outside the schema and is not fetched",
        ),
        (
            HARNESS.replace(
                "{model: primary}",
                "{model: primary, output: {schema: {type: object, properties: {n: {type: integer}}}, safe: {n: x}}}",
            ),
            "the safe answer does not fit the schema: n: ",
        ),
        (HARNESS.replace("anthropic", "antropic"), "unknown word antropic: did you mean"),
        (HARNESS.replace("window: 200k", "window: 200k, max_output: 300k"), "leaves nothing of the window"),
        (HARNESS.replace("prices: free", "prices: cheap"), "cheap is no price: write free, or"),
        (HARNESS.replace("prices: free", "prices: {input: 3}"), 'the key "output" is missing'),
        (HARNESS.replace("http://127.0.0.1:1", "ftp://x"), "is not an address of a service"),
        (HARNESS + "store: {url: mysql://x}\n", "is not a store: write sqlite:FILE or postgresql://HOST/NAME"),
        (
            HARNESS + "store: {url: 'postgresql://u:secret@h/db'}\n",
            "a password stands in the address: write url: {env:",
        ),
        (HARNESS + "store: {lease: {ttl: 6s, heartbeat: 5s}}\n", "heartbeat is more than a third of ttl"),  # g10
        (HARNESS + "tools: {bash: {command: [x], about: X}}\n", '"bash" is a built-in tool: choose another name'),
        (
            HARNESS
            + "tools: {t: {command: [x, '{srvice}'], schema: {type: object, properties: {service: {}}}, about: X}}\n",
            'no argument "srvice" in the schema: did you mean "service"?',
        ),
        (
            HARNESS + "tools: {t: {command: ['{x}'], schema: {type: object, properties: {x: {}}}, about: X}}\n",
            "the program is chosen by the call: write the program out",
        ),
        (
            HARNESS + "tools: {t: {command: [x], schema: {type: string}, about: X}}\n",
            "the schema of a tool is of an object",
        ),
        (
            HARNESS + "tools: {t: {command: [x], schema: {type: object, properties: 3}, about: X}}\n",
            "not a JSON Schema",
        ),
        (HARNESS + "http_request: {private: [10.0.0.0/40]}\n", "is neither a network (10.0.0.0/8), an address nor"),
        (HARNESS + "mcp: {x: 1}\n", '"mcp" is not yet possible: remove the key'),
        (HARNESS + "features: {f: {agent: nobody}}\n", 'no agent "nobody"'),
        ("- a\n", "this is no map"),
        (HARNESS + "---\na: 1\n", "a second document: keep one document"),
        ("# only words\n", "empty: nothing but comments"),
    ],
)
def test_what_is_wrong_in_harness_yaml_is_told_with_place_and_remedy(site: Site, text: str, message: str) -> None:
    site.config.write_text(text)
    assert any(message in line for line in problems(site)), problems(site)


def test_problems_of_harness_yaml_and_of_all_policies_come_together(site: Site) -> None:
    # R7.2
    site.config.write_text(HARNESS + "worker: 3\n")
    site.write("retry.yaml", "kind: retry\nmodel: {retrys: 3}\n")
    (site.policies / "notes.yml").write_text("x")
    (site.policies / "old").mkdir()
    (site.policies / "tests").mkdir()
    assert problems(site) == [
        'harness.yaml:6:1: unknown key "worker": did you mean "workers"?',
        "policies/notes.yml:1:1: not read, and refused so that it is noticed: name it notes.yaml",
        (
            "policies/old:1:1: not read, and refused so that it is noticed: "
            "move its files here; only tests/ is a folder of its own"
        ),
        'policies/retry.yaml:2:9: unknown key "retrys": did you mean "retries"?',
    ]


def test_a_secret_is_never_a_literal_and_never_repeated(site: Site) -> None:
    # h16, h17
    for url in ("https://u:sk-test-0000@x", "https://x?key=sk-test-0000"):
        site.config.write_text(HARNESS.replace("http://127.0.0.1:1", url))
        assert "this is not an address of a service" in problems(site)[0]
        assert "0000" not in str(problems(site))
    for written in ("sk-test-0000", "{x: sk-test-0000}", "[sk-test-0000]", "{env: 'sk test 0000'}"):
        site.config.write_text(HARNESS.replace("model: m,", f"model: m, key: {written},"))
        found = problems(site)
        assert found == [line for line in found if "a secret is never written here: write {env: NAME}" in line]
        assert "0000" not in str(found)


def test_a_model_without_a_price_is_a_warning_and_none_with_one_an_error(site: Site) -> None:
    unpriced = HARNESS.replace(", prices: free", "")
    site.config.write_text(unpriced)
    assert "budget/default limits cost_usd, but no model in harness.yaml has a price (primary)" in problems(site)[0]
    second = (
        '  local: {protocol: openai-chat, base_url: "http://x", model: m, window: 8k, max_output: 1k, prices: %s}\n'
    )
    site.config.write_text(unpriced.replace("agents:", second % "free" + "agents:"))
    assert "but some models have no price and the others are free (primary)" in problems(site)[0], "never as zero"
    site.config.write_text(unpriced.replace("agents:", second % "{input: 3, output: 15}" + "agents:"))
    assert [warning.message for warning in site.load().warnings] == [
        "model primary has no price: it is charged as the dearest declared one (local: 3.0 and 15.0 USD)"
    ]


# --- where it is found ------------------------------------------------------------------------------------------------


def test_the_search_order(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    user = home / ".config" / "harnessd" / "harness.yaml"
    user.parent.mkdir(parents=True)
    user.write_text(HARNESS)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert find_config(None, {"HOME": str(home)}) == user
    monkeypatch.chdir(site.root)
    assert find_config(None, {"HOME": str(home)}) == Path("harness.yaml")
    assert find_config(None, {"HOME": str(home), "HARNESSD_CONFIG": str(user)}) == user
    assert find_config(site.config, {"HARNESSD_CONFIG": str(user)}) == site.config
    assert find_config(site.root, {}) == site.config


def test_a_missing_harness_yaml_is_one_clear_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load(None, {"HOME": str(tmp_path)})
    looked = f"harness.yaml, {tmp_path}/.config/harnessd/harness.yaml, /etc/harnessd/harness.yaml"
    assert caught.value.sentence == f"There is no harness.yaml: looked for {looked}."
    assert caught.value.remedy
    with pytest.raises(ConfigError, match=r"There is no nowhere.yaml \(--config\)"):
        load(Path("nowhere.yaml"), {})


def test_an_absent_and_an_empty_folder_are_the_defaults(site: Site) -> None:
    (site.policies / "budget.yaml").unlink()
    empty = site.load()
    shutil.rmtree(site.policies)
    absent = site.load()
    assert empty.policies.hash == absent.policies.hash == builtin_policies().hash


def test_names_in_messages_are_as_given(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write("retry.yaml", "kind: retri\n")
    monkeypatch.chdir(site.root)
    with pytest.raises(ConfigProblems, match=r"^policies/retry.yaml:1:7: unknown kind"):
        load(None, {"HOME": "/"})
    with pytest.raises(ConfigProblems, match=r"^policies/retry.yaml:1:7: unknown kind"):
        load(None, {"HOME": "/"}, policies_dir=Path("policies"))


def test_without_a_harness_yaml_every_reference_says_so(site: Site) -> None:
    site.write("breaker.yaml", "kind: breaker\nrules: [{for: model/primary, probes: 2}]\n")
    read = read_policies(site.policies, "policies", None, alone=True)
    assert [str(problem) for problem in read.problems if "breaker.yaml" in problem.file] == [
        "policies/breaker.yaml:2:15: model/primary cannot be looked up without a harness.yaml: name it: --config FILE"
    ]


# --- the folder -------------------------------------------------------------------------------------------------------


def test_leavings_are_ignored_and_strange_files_told(site: Site) -> None:
    for name in (".x.yaml", "a.yaml~", "b.swp", "c.yaml.orig", "notes.txt", "#a.yaml#"):
        (site.policies / name).write_text("not: [yaml")
    os.mkfifo(site.policies / "pipe.yaml")
    Path(os.fsdecode(os.fsencode(site.policies) + b"/\xff\n\x1b.yaml")).write_text("kind: loop\n")
    (site.policies / "gone.yaml").symlink_to("nowhere")
    snapshot = read_folder(site.policies, "policies")
    assert [file.shown for file in snapshot.files] == ["policies/budget.yaml", "policies/'\\udcff\\n\\x1b.yaml'"]
    assert len(snapshot.hash) == 64
    assert [str(problem) for problem in snapshot.problems] == [
        "policies/gone.yaml:1:1: cannot be read: No such file or directory: mend or delete it",
        "policies/pipe.yaml:1:1: cannot be read: not a regular file: mend or delete it",
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(alphabet="kind: retry\nbudget{}[],#-rules*'\"0%", max_size=150).map(str.encode),
        st.sampled_from(sorted(path.name for path in builtin_folder().glob("*.yaml"))).flatmap(
            lambda name: st.tuples(st.integers(0, 4000), st.binary(max_size=12)).map(
                lambda cut: (
                    (builtin_folder() / name).read_bytes()[: cut[0]]
                    + cut[1]
                    + (builtin_folder() / name).read_bytes()[cut[0] + len(cut[1]) :]
                )
            )
        ),
    )
)
def test_any_bytes_as_a_policy_file_are_a_set_or_problems(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    # G14, G15
    folder = tmp_path_factory.mktemp("any")
    (folder / "x.yaml").write_bytes(data)
    read = read_policies(folder, "policies", None)
    assert (read.policies is None) == bool(read.problems)
    for problem in read.problems:
        assert re.match(r"policies/x\.yaml:\d+:\d+: \S", str(problem)), problem
        assert "\n" not in str(problem)


def test_policies_are_looked_through_even_where_harness_yaml_is_wrong(site: Site) -> None:
    site.config.write_text(HARNESS.replace("window: 200k", "window: many"))
    site.write(
        "breaker.yaml", "kind: breaker\nrules: [{for: model/primary, probes: 2}, {for: model/primry, probes: 3}]\n"
    )
    assert [line.split(": ", 1)[1] for line in problems(site)] == [
        "many is not a count: write a whole number such as 90, 200k or 2M",
        'no model "primry" in harness.yaml: did you mean model/primary?',
    ]


# --- the environment --------------------------------------------------------------------------------------------------


def test_variables_lie_over_the_file(site: Site) -> None:
    site.environ |= {
        "HARNESSD_STORE__URL": "sqlite:/var/x.db",
        "HARNESSD_WORKERS": "4",
        "HARNESSD_MODELS__PRIMARY__WINDOW": "100k",
        "HARNESSD_WORKSPACES__ROOTS": "[/a, /b]",
        "HARNESSD_POLICIES__WATCH": "false",
        "HARNESSD_SOCKET": "the client's",
        "HARNESSD_URL": "the client's",
        "HARNESSD_CRASH": "the tests'",
        "HARNESSD_CONFIG": "elsewhere",
        "HARNESS_OTHER": "not ours",
    }
    loaded = site.load().settings
    assert (loaded.store.url, loaded.workers, loaded.policies.watch) == ("sqlite:/var/x.db", 4, False)
    assert loaded.models["primary"].window == 100_000
    assert loaded.workspaces.roots == ("/a", "/b")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HARNESSD_STORE__URI", "x", "HARNESSD_STORE__URI: no such setting: did you mean HARNESSD_STORE__URL?"),
        ("HARNESSD_STORE_URL", "x", "HARNESSD_STORE_URL: no such setting: did you mean HARNESSD_STORE__URL?"),
        ("HARNESSD_MODELS__PRIMARY__WINDO", "1", "did you mean HARNESSD_MODELS__PRIMARY__WINDOW?"),
        ("HARNESSD_SOKET", "x", "HARNESSD_SOKET: no such setting: did you mean HARNESSD_SOCKET?"),
        ("HARNESSD_WORKERS", "many", "HARNESSD_WORKERS: many is not a count: write a whole number"),
        ("HARNESSD_DRAIN", "60", "HARNESSD_DRAIN: 60 is not a duration: write 60s or 1m"),
        ("HARNESSD_", "x", "HARNESSD_: no such setting"),
    ],
)
def test_a_mistyped_variable_is_refused(site: Site, name: str, value: str, message: str) -> None:
    site.environ[name] = value
    assert any(message in line for line in problems(site))


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_secrets_are_read_at_each_use_and_never_shown(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "CREDENTIALS_DIRECTORY": str(tmp_path / "given"), "KEY": " sk-1 \n"}
    assert resolve_secret(SecretRef("env", "KEY"), environ, "model primary").value == "sk-1"
    absent = resolve_secret(SecretRef("env", "NONE"), environ, "model primary")
    assert absent.sentence == "model primary: NONE is not set"
    assert "set NONE in the daemon's environment" in absent.remedy
    missing = resolve_secret(SecretRef("credential", "key"), environ, "model primary")
    assert (missing.value, missing.sentence) == (None, "model primary: there is no credential key")
    assert missing.remedy == f"put the key into {tmp_path}/given/key"
    folder = tmp_path / ".config/harnessd/credentials"
    folder.mkdir(parents=True)
    (folder / "key").write_text("sk-2\n")
    found = resolve_secret(SecretRef("credential", "key"), environ, "model primary")
    assert found.value == "sk-2"
    assert "sk-2" not in repr(found)
    (folder / "key").write_text("two\nlines")
    assert resolve_secret(SecretRef("credential", "key"), environ, "model primary").value is None


def test_a_missing_key_is_no_problem_of_loading_but_told_when_asked(site: Site) -> None:
    site.config.write_text(HARNESS.replace("model: m,", "model: m, key: {env: THE_KEY},"))
    site.write("notify.yaml", "kind: notify\nchannels: {ops: {webhook: {url: {credential: ops_url}}}}\n")
    loaded = site.load()
    told = [
        problem.message for problem in unset_secrets(loaded.settings, loaded.policies, site.environ, "harness.yaml")
    ]
    assert told == ["model primary: THE_KEY is not set", "channel ops: there is no credential ops_url"]
