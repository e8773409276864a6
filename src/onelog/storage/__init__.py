"""Storage engines: one interface (`engine`), one folder per engine."""
