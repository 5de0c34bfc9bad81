# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts: folders, messages, compiler cache. Sourced, never run.
set -euo pipefail

skein_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
skein_deps="${SKEIN_DEPS:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/skein}"
skein_torch_version=2.15.0 # pinned by packaging/libtorch-cpu-<version>.txt
skein_libtorch="$skein_deps/libtorch-$skein_torch_version-cpu"
skein_libtorch_cuda="$skein_deps/libtorch-$skein_torch_version-cuda"
skein_test_python="$skein_deps/test-python"

# The build root holds one folder per preset. The presets build into build/<preset>; another place is
# given with SKEIN_BUILD_ROOT.
skein_build_root="$(realpath -m "${SKEIN_BUILD_ROOT:-$skein_root/build}")"

say() { printf '%s\n' "-- $*"; }
fail() { printf '%s\n' "error: $*" >&2; exit 1; }

# Prints the comment block at the top of a script: its --help.
help_of() { sed -n '2,/^[^#]/{/^# SPDX/d;/^#/{s/^# \{0,1\}//;p}}' "$1"; }

# ccache must not miss because a precompiled header carries a time.
export CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros,include_file_mtime,include_file_ctime}"
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$skein_root}"
export CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"

jobs_wanted() {
    if [ -n "${SKEIN_JOBS:-}" ]; then echo "$SKEIN_JOBS"; return; fi
    # A file that includes LibTorch takes about 1.5 GB of memory in the compiler.
    local cores memory_kb by_memory
    cores="$(nproc 2>/dev/null || echo 2)"
    memory_kb="$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null || echo 4000000)"
    by_memory=$(( memory_kb / 2000000 ))
    [ "$by_memory" -lt 1 ] && by_memory=1
    [ "$cores" -gt "$by_memory" ] && cores="$by_memory"
    echo "$cores"
}

# The preset for everyday use: clang where it is installed, g++ otherwise.
main_preset() {
    if [ -n "${SKEIN_PRESET:-}" ]; then echo "$SKEIN_PRESET"
    elif command -v clang++-19 >/dev/null 2>&1; then echo clang
    else echo gcc; fi
}

# configure_preset PRESET [cmake arguments...]: configures $skein_build_root/PRESET.
configure_preset() {
    local preset="$1"; shift
    (cd "$skein_root" && cmake --preset "$preset" -B "$skein_build_root/$preset" "$@")
}
