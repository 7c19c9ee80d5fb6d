"""What the tools for figures share: what a user can change ends with one line and exit status 2."""
import argparse
import contextlib
import os
import sys


def fail(text):
    print(f"{os.path.basename(sys.argv[0])}: {text}", file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    """Of a tool whose docstring is its help."""

    def __init__(self, doc):
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        fail(f"{message}; see {self.prog} --help")


def read(path, errors="strict"):
    try:
        with open(path, encoding="utf-8", errors=errors) as file:
            return file.read()
    except OSError as error:
        fail(f"{path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        fail(f"{path}: cannot be read: expected UTF-8 text")


def write(path, text):
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror}")


@contextlib.contextmanager
def figures_of(path):
    """Around the code that takes the text of `path` to be what it should be."""
    try:
        yield
    except KeyError as error:
        fail(f"{path}: expected '{error.args[0]}', found none; is this the file that the tool draws?")
    except (ValueError, TypeError, AttributeError, IndexError, ZeroDivisionError) as error:
        fail(f"{path}: unexpected contents: {error}")
