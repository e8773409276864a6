"""The tests, by kind; see CONTRIBUTING.md."""
