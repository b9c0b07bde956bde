"""What a command works with: the options that every command has, and the registry that they name."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import URL

    from modelreg.cli.progress import Reporter
    from modelreg.config.settings import Home, Settings
    from modelreg.registry.database import Database
    from modelreg.registry.releasing import Releases
    from modelreg.registry.storage.interface import Progress, Storage


class Invocation:
    """One run of the command line; `home`, `flags` (of `--set`) and the others are the global options."""

    def __init__(self) -> None:
        self.home: Path | None = None
        self.flags: tuple[tuple[str, str], ...] = ()
        self.as_json = False
        self.verbose = False
        self.no_color = False
        self._warned = False

    def find_home(self) -> Home:
        """Return the registry's folder; raises HomeNotFoundError where there is none."""
        from modelreg.config.settings import find_home

        home = find_home(self.home, flags=self.flags)
        self.warn_of_variables()
        return home

    def warn_of_variables(self) -> None:
        """Warn, once, of variables that look like settings and are none: a typo would mean the default."""
        if self._warned:
            return
        self._warned = True
        from modelreg.config.keys import unknown_variables

        if unknown_variables(os.environ):
            from modelreg.cli.render import print_warning
            from modelreg.config.unknown import describe_unknown

            for warning in describe_unknown(os.environ):
                print_warning(warning)

    def find_store_url(self) -> str:
        """
        Return the store of the registry, or the one that a variable or a flag names, which needs no registry.

        Raises:
            HomeNotFoundError: There is neither.
        """
        from modelreg.registry.errors import HomeNotFoundError

        try:
            return self.find_home().store_url
        except HomeNotFoundError:
            if self.home is not None:
                raise
            from modelreg.config.layers import OriginKind, resolve
            from modelreg.registry.storage.open import locate_storage

            found = resolve(None, environment=os.environ, flags=self.flags)
            if found.origins["store.url"].kind is OriginKind.DEFAULT:
                raise
            self.warn_of_variables()
            return locate_storage(found.values["store.url"])

    def find_settings(self) -> Settings:
        """Return the settings of the registry, or of variables and flags alone where there is none."""
        from modelreg.config.settings import load_settings
        from modelreg.registry.errors import HomeNotFoundError

        try:
            return self.find_home().settings
        except HomeNotFoundError:
            if self.home is not None:
                raise
            return load_settings(None, environment=os.environ, flags=self.flags)

    def open_registry(self) -> Registry:
        """Return the registry; its database and store are opened when they are first used."""
        return Registry(self.find_home())

    def reporter(self) -> Reporter:
        """Return where progress is told: live on a terminal, else a line for each step."""
        from modelreg.cli.progress import Reporter

        return Reporter(no_color=self.no_color, verbose=self.verbose)


class Registry:
    """A registry whose parts are opened when they are first used: `toolchain list` needs no store."""

    def __init__(self, home: Home) -> None:
        self.home = home

    @cached_property
    def storage(self) -> Storage:
        """Return the store."""
        return open_store(self.home)

    @cached_property
    def database(self) -> Database:
        """Return the database, of the schema that this program knows."""
        return open_database(self.home)

    def open(self) -> None:
        """Open both at once, so that what is missing is said before long work and not after it."""
        _ = self.storage, self.database

    def require_writable(self) -> None:
        """Check that what long work ends in can be written: a store, and a database that no writer keeps for long."""
        self.storage.require_writable()
        self.require_writable_database()

    def require_writable_database(self) -> None:
        """Check the same of the database alone."""
        with self.database.write():
            pass

    @property
    def actor(self) -> str:
        """Return who is at work."""
        from modelreg.registry.actor import current_actor

        return current_actor()


def open_store(home: Home) -> Storage:
    """Return the registry's store."""
    from modelreg.registry.storage.open import open_storage

    return open_storage(home.store_url)


def open_database(home: Home) -> Database:
    """Return the registry's database, of the schema that this program knows."""
    from modelreg.registry.database import Database

    return Database.open(locate_database(home), timeout_s=home.settings.lock_timeout_s)


def locate_database(home: Home) -> str | URL:
    """Return the database's URL; as an object for a file, whose path may hold any character."""
    from modelreg.registry.database import sqlite_url

    path = home.database_path
    return home.database_url if path is None else sqlite_url(path)


def locate_given_database(url: str) -> str | URL:
    """
    Return the URL of a database that an option names; a file's path is one from here.

    Raises:
        UsageError: It names none.
    """
    from modelreg.registry.database import sqlite_url
    from modelreg.registry.database_url import check_database_url

    return check_database_url(url) if "://" in url else sqlite_url(Path(check_database_url(url)).absolute())


def open_database_if_usable(home: Home, *, doing: str) -> Database | None:
    """Return the database, or None with a warning where `doing` works without it."""
    from modelreg.registry.errors import BusyError, DatabaseError, MissingDependencyError

    try:
        return open_database(home)
    except (DatabaseError, BusyError, MissingDependencyError) as error:
        from modelreg.cli.render import print_warning

        print_warning(f"{error}; {doing} from the store alone")
        return None


def open_releases(
    home: Home, *, storage: Storage, database: Database | None, progress: Progress | None = None
) -> Releases:
    """Return what promotes and rolls back."""
    from modelreg.registry.actor import current_actor
    from modelreg.registry.releasing import Releases
    from modelreg.registry.storage.interface import no_progress

    return Releases(
        database=database,
        storage=storage,
        actor=current_actor(),
        lock_timeout_s=home.settings.lock_timeout_s,
        progress=progress or no_progress,
    )
