# SPDX-License-Identifier: Apache-2.0
# What tests, examples and benchmarks share: warnings, linker, precompiled headers, and which source
# file needs LibTorch.
find_package(Python3 3.9 COMPONENTS Interpreter REQUIRED)

# Warnings are for our own programs only; a user of the library never gets them from us.
add_library(skein_developer INTERFACE)
target_compile_options(skein_developer INTERFACE -Wall -Wextra)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(skein_developer INTERFACE -fconcepts-diagnostics-depth=10)
  # g++ 12 sees uninitialised and dangling memory in coroutine frames and std::variant where there is none
  # (GCC bugs 95137, 105562, 105593); clang's warnings and the sanitizers watch the same.
  target_compile_options(skein_developer INTERFACE -Wno-maybe-uninitialized -Wno-dangling-pointer)
else()
  target_compile_options(skein_developer INTERFACE "SHELL:-Xclang -fno-pch-timestamp")   # lets ccache keep the PCH
endif()
target_compile_definitions(skein_developer INTERFACE _GLIBCXX_ASSERTIONS)
include(CheckLinkerFlag)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  check_linker_flag(CXX -fuse-ld=lld SKEIN_HAVE_LLD)
  if(SKEIN_HAVE_LLD)
    target_link_options(skein_developer INTERFACE -fuse-ld=lld)
  endif()
endif()

# What programs see of skein, without the libraries themselves: for precompiled headers.
set(skein_usage skein_header_only)
if(SKEIN_COMPILED)
  set(skein_usage skein_compiled)
endif()

# Precompiled headers: one light, one with skein's torch-free part, one with LibTorch; every program reuses
# one of them. They fit programs that are compiled with the same options only, so tests have a set of their own.
function(skein_pch name links options)
  set(lines ${ARGN})
  list(JOIN lines "\n" text)
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/pch/${name}.cpp" CONTENT "// made by cmake/SkeinPrograms.cmake\n")
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/pch/${name}.hpp" CONTENT "#pragma once\n${text}\n")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/pch/${name}.cpp")
  target_link_libraries(${name} PRIVATE ${links} skein_developer)
  target_compile_options(${name} PRIVATE ${options})
  target_precompile_headers(${name} PRIVATE "${CMAKE_BINARY_DIR}/pch/${name}.hpp")
endfunction()

# skein_pch_set(SUFFIX options): skein_pch_light, skein_pch_runtime and skein_pch_torch, each with the suffix.
function(skein_pch_set suffix options)
  set(std_headers "#include <algorithm>" "#include <chrono>" "#include <coroutine>" "#include <functional>" "#include <map>"
      "#include <memory>" "#include <optional>" "#include <span>" "#include <string>" "#include <thread>" "#include <variant>"
      "#include <vector>" "#include <fmt/format.h>")
  set(catch "#if __has_include(<catch2/catch_test_macros.hpp>)" "#include <catch2/catch_test_macros.hpp>" "#endif")
  skein_pch(skein_pch_light${suffix} "${skein_usage}" "${options}" ${std_headers} ${catch})
  skein_pch(skein_pch_runtime${suffix} "${skein_usage}" "${options}" ${std_headers} "#include <skein/skein.hpp>" ${catch})
  if(SKEIN_HAVE_TORCH)
    # Catch2 after LibTorch: both define CHECK, and LibTorch's ends the process.
    skein_pch(skein_pch_torch${suffix} "${skein_usage};skein_torch" "${options}" ${std_headers} "#include <torch/torch.h>" ${catch})
  endif()
endfunction()
option(SKEIN_PCH "Precompiled headers" ON)
if(SKEIN_PCH)
  skein_pch_set("" "")
endif()

# Files of their own make the shorter edit loop, batches the shorter whole build: the headers' templates are
# instantiated once.
set(SKEIN_BATCH 0 CACHE STRING "Files of the library, or of a layer's tests, that are compiled together; 0: each on its own")

# The library as our tests see it: with our warnings and assertions, and most headers precompiled.
function(skein_own_build_flags)
  if(NOT SKEIN_COMPILED)
    return()
  endif()
  foreach(library runtime sim train images etcd http)
    if(TARGET skein_${library})
      target_link_libraries(skein_${library} PRIVATE $<BUILD_INTERFACE:skein_developer>)
    endif()
  endforeach()
  if(SKEIN_PCH AND SKEIN_DEVELOPER_MODE)
    target_precompile_headers(skein_runtime REUSE_FROM skein_pch_runtime)
    target_precompile_headers(skein_sim REUSE_FROM skein_pch_runtime)
    if(TARGET skein_train)
      target_precompile_headers(skein_train REUSE_FROM skein_pch_torch)
    endif()
  endif()
  if(SKEIN_BATCH GREATER 1 AND SKEIN_DEVELOPER_MODE)
    set_target_properties(skein_runtime PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
  endif()
endfunction()

# skein_needs_torch(OUT files...): those of the files whose skein includes reach LibTorch.
function(skein_needs_torch out)
  set(${out} "" PARENT_SCOPE)
  if(ARGN)
    execute_process(COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/scripts/needs_torch.py" ${ARGN}
                    OUTPUT_VARIABLE text OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    set(${out} "${text}" PARENT_SCOPE)
  endif()
endfunction()

# Parts of skein that need libraries of others, and how their users are known: they include the headers themselves.
set(skein_parts images etcd http cuda)
set(skein_include_of_images "^#include <skein/data/decode\\.hpp>")
set(skein_include_of_etcd "^#include <skein/spmd/(etcd_register|detail/(etcd|curl)_[a-z]+)\\.hpp>")
set(skein_include_of_http "^#include <skein/(wire/(detail/)?http|net/(detail/)?http_)[a-z_]*\\.hpp>|^#include <apps/skein/page\\.hpp>|^#include \"net/http_support\\.hpp\"")
set(skein_include_of_cuda "^#include <skein/torch/cuda\\.hpp>")
set(skein_libraries_of_images "libjpeg and libpng")
set(skein_libraries_of_etcd "libcurl")
set(skein_libraries_of_http "the headers of Boost.Beast")
set(skein_libraries_of_cuda "libc10_cuda.so and the headers of CUDA's runtime beside LibTorch")

# skein_needs_part(OUT PART files...): those of the files that need skein::PART.
function(skein_needs_part out part)
  set(found "")
  foreach(file IN LISTS ARGN)
    file(STRINGS "${file}" line REGEX "${skein_include_of_${part}}" LIMIT_COUNT 1)
    if(line)
      list(APPEND found "${file}")
    endif()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# skein_drop_parts(LIST): where a part is not there, the files that need it leave the list, and that is said.
function(skein_drop_parts list)
  foreach(part IN LISTS skein_parts)
    skein_needs_part(found ${part} ${${list}})
    if(NOT TARGET skein_${part} AND found)
      foreach(file IN LISTS found)
        cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE name)
        message(STATUS "${name}: off, it needs ${skein_libraries_of_${part}}")
      endforeach()
      list(REMOVE_ITEM ${list} ${found})
    endif()
  endforeach()
  set(${list} "${${list}}" PARENT_SCOPE)
endfunction()

# skein_link_parts(TARGET SUFFIX files...): what the files need of them.
function(skein_link_parts target suffix)
  foreach(part IN LISTS skein_parts)
    skein_needs_part(found ${part} ${ARGN})
    if(found)
      target_link_libraries(${target} PRIVATE skein::${part}${suffix})
    endif()
  endforeach()
  # Programs that have a use for devices, and do without where LibTorch's half for them cannot be compiled against.
  if(TARGET skein_cuda)
    foreach(file IN LISTS ARGN)
      file(STRINGS "${file}" line REGEX "^#if defined\\(SKEIN_CUDA\\)" LIMIT_COUNT 1)
      if(line)
        target_link_libraries(${target} PRIVATE skein::cuda)
      endif()
    endforeach()
  endif()
endfunction()

# skein_program(NAME FOLDER kind sources...): kind is core, runtime or train. A caller that sets skein_pch_suffix has
# the precompiled headers of that set.
function(skein_program name folder kind)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE skein::${kind} skein_developer)
  skein_link_parts(${name} "" ${ARGN})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/${folder}")
  if(SKEIN_PCH)
    set(pch_core skein_pch_light${skein_pch_suffix})
    set(pch_runtime skein_pch_runtime${skein_pch_suffix})
    set(pch_train skein_pch_torch${skein_pch_suffix})
    target_precompile_headers(${name} REUSE_FROM ${pch_${kind}})
  endif()
endfunction()
