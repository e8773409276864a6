/* Every module of the kernel carries the digest of what it was compiled from: onelog/kernel/origin.py
   looks for it. setup.py includes this file first and defines ONELOG_SOURCES. */
#if defined(__GNUC__) || defined(__clang__)
__attribute__((used))
#endif
static const char onelog_sources[] = "onelog-kernel-sources:" ONELOG_SOURCES;
