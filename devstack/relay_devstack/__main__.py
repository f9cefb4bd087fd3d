"""`python -m relay_devstack up|down|reset|logs|migrate|topics|psql`: what the Makefile calls."""

import argparse
import os
import sys
from collections.abc import Callable

from relay_devstack import stack, topics
from relay_devstack.addresses import running_addresses
from relay_devstack.errors import DevstackError
from relay_devstack.layout import state_dir
from relay_devstack.postgres import PostgresServer
from relay_devstack.terminal import Terminal


def up(arguments: argparse.Namespace) -> None:
    """Start the stack and print its addresses."""
    terminal = Terminal()
    addresses = stack.Stack(state_dir(), terminal).up()
    terminal.say("Relay is ready")
    print("\n".join(f"  {name:<24}{value}" for name, value in addresses.items()))
    print(f"  logs and state          {state_dir()}")
    print("Next: .venv/bin/relay token --help · make logs S=matcher · make down")


def down(arguments: argparse.Namespace) -> None:
    """Stop the stack and say what ran."""
    stopped = stack.Stack(state_dir(), Terminal()).down()
    print(f"Stopped {', '.join(stopped)}." if stopped else "Nothing of this stack was running.")


def reset(arguments: argparse.Namespace) -> None:
    """Stop the stack and throw its data away."""
    stack.Stack(state_dir(), Terminal()).reset()
    print("Stopped the stack and threw its data away.")


def logs(arguments: argparse.Namespace) -> None:
    """Follow the log of one process, or of all."""
    folder = state_dir() / "logs"
    files = sorted(folder.glob(f"{arguments.name or '*'}.log"))
    if not files:
        there = ", ".join(sorted(file.stem for file in folder.glob("*.log"))) or "none"
        raise DevstackError(
            f"There is no log of {arguments.name or 'anything'}; there is: {there}."
        )
    os.execvp("tail", ["tail", "-n", "40", "-F", *map(str, files)])  # noqa: S606 -- becomes tail


def migrate(arguments: argparse.Namespace) -> None:
    """Apply the missing migrations to the stack's database."""
    url = running_addresses(state_dir())["RELAY_DATABASE_URL"]
    migration = [sys.executable, "-m", "relay_common.migrate", "--database-url", url]
    os.execv(sys.executable, migration)  # noqa: S606 -- becomes the migration runner


def create_topics(arguments: argparse.Namespace) -> None:
    """Create the missing topics."""
    bootstrap = os.environ.get("RELAY_KAFKA_BOOTSTRAP") or _kafka_of_stack()
    made = topics.create(bootstrap, os.environ)
    print(f"Created {', '.join(made)}." if made else "All topics exist.")


def psql(arguments: argparse.Namespace) -> None:
    """Open a prompt on the stack's database."""
    url = running_addresses(state_dir())["RELAY_DATABASE_URL"]
    program = PostgresServer(state_dir()).binaries() / "psql"
    os.execv(program, ["psql", url])  # noqa: S606 -- becomes psql


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "up": up,
    "down": down,
    "reset": reset,
    "logs": logs,
    "migrate": migrate,
    "topics": create_topics,
    "psql": psql,
}


def main() -> int:
    """Run one command; a fault is one sentence and exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.__doc__)
    commands.choices["logs"].add_argument("name", nargs="?")
    arguments = parser.parse_args()
    try:
        COMMANDS[arguments.command](arguments)
    except DevstackError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; `make down` stops what has started.", file=sys.stderr)
        return 130
    return 0


def _kafka_of_stack() -> str:
    return running_addresses(state_dir())["RELAY_KAFKA_BOOTSTRAP"]


if __name__ == "__main__":
    sys.exit(main())
