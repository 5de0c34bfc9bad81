# SPDX-License-Identifier: Apache-2.0
# skein::module: `import skein;`, over the form that skein::runtime has. Off, with the reason, where CMake or the
# compiler cannot do it. Read by the build and, for the reason alone, by an installed skein-config.cmake.

# Sets `out` to why there are no modules here; empty when there are.
function(skein_why_no_module out)
  set(why "")
  if(CMAKE_VERSION VERSION_LESS 3.28)
    set(why "CMake is ${CMAKE_VERSION}, modules need 3.28")
  elseif(NOT CMAKE_GENERATOR MATCHES "Ninja")
    set(why "the generator is ${CMAKE_GENERATOR}, modules need Ninja")
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
    set(why "g++ ${CMAKE_CXX_COMPILER_VERSION} stops with an internal error, modules need g++ 15 or clang 16")
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND NOT CMAKE_CXX_COMPILER_CLANG_SCAN_DEPS)
    set(why "no clang-scan-deps of this clang (Debian's package clang-tools-19)")
  endif()
  set(${out} "${why}" PARENT_SCOPE)
endfunction()
