"""When programs arrive: ``source`` says what any kind of traffic provides, one file each."""
