# SPDX-License-Identifier: Apache-2.0
# LibTorch without its own CMake config, which insists on a CUDA toolkit when it was built with CUDA.
#
# Looked for in this order; the first that has torch/torch.h and libtorch_cpu.so is taken:
#   1 LIBTORCH (variable or environment): an official LibTorch folder, or a folder that holds torch/
#   2 Torch_DIR (variable or environment): <LibTorch>/share/cmake/Torch
#   3 the cache of scripts/setup: SKEIN_DEPS, else skein/ in the user's cache folder; the newest first, one with its CUDA
#     half before those without
#   4 the torch package of the Python that is on the path (or of Python3_EXECUTABLE)
#   5 Debian's libtorch-dev
# Gives LibTorch::cpu, LibTorch::cuda (when libtorch_cuda is beside it), LibTorch_VERSION,
# LibTorch_PREFIX (the folder that holds torch/), LibTorch_SOURCE (in words).
#
# The two include folders are given with -idirafter: the wheel carries headers of its own fmt, which
# with -isystem would shadow the system's.
set(libtorch_candidates)   # pairs: "folder that holds include/ and lib/" | words
macro(_libtorch_candidate folder words)
  if(NOT "${folder}" STREQUAL "")
    list(APPEND libtorch_candidates "${folder}|${words}")
  endif()
endmacro()

set(_libtorch_given "${LIBTORCH}")
if(NOT _libtorch_given)
  set(_libtorch_given "$ENV{LIBTORCH}")
endif()
set(_torch_dir "${Torch_DIR}")
if(NOT _torch_dir)
  set(_torch_dir "$ENV{Torch_DIR}")
endif()
if(_libtorch_given)
  _libtorch_candidate("${_libtorch_given}" "LIBTORCH")
  _libtorch_candidate("${_libtorch_given}/torch" "LIBTORCH")
elseif(_torch_dir)
  cmake_path(ABSOLUTE_PATH _torch_dir NORMALIZE OUTPUT_VARIABLE _torch_root)
  string(REGEX REPLACE "/share/cmake/Torch/?$" "" _torch_root "${_torch_root}")
  _libtorch_candidate("${_torch_root}" "Torch_DIR")
else()
  set(_deps "$ENV{SKEIN_DEPS}")
  if(SKEIN_DEPS)
    set(_deps "${SKEIN_DEPS}")
  endif()
  if(NOT _deps AND DEFINED ENV{XDG_CACHE_HOME})
    set(_deps "$ENV{XDG_CACHE_HOME}/skein")
  endif()
  if(NOT _deps)
    set(_deps "$ENV{HOME}/.cache/skein")
  endif()
  file(GLOB _cached LIST_DIRECTORIES true "${_deps}/libtorch-*-cuda")
  file(GLOB _cached_cpu LIST_DIRECTORIES true "${_deps}/libtorch-*-cpu")
  list(SORT _cached COMPARE NATURAL ORDER DESCENDING)
  list(SORT _cached_cpu COMPARE NATURAL ORDER DESCENDING)
  list(APPEND _cached ${_cached_cpu})
  foreach(_folder IN LISTS _cached)
    if(EXISTS "${_folder}/skein-complete")
      _libtorch_candidate("${_folder}/torch" "scripts/setup")
    endif()
  endforeach()
  if(NOT _cached)
    find_program(LibTorch_PYTHON NAMES python3 HINTS ${Python3_ROOT_DIR} ENV VIRTUAL_ENV PATH_SUFFIXES bin)
    mark_as_advanced(LibTorch_PYTHON)
    if(Python3_EXECUTABLE)
      set(LibTorch_PYTHON "${Python3_EXECUTABLE}")
    endif()
    if(LibTorch_PYTHON)
      execute_process(COMMAND "${LibTorch_PYTHON}" -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
                      OUTPUT_VARIABLE _python_torch ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
      _libtorch_candidate("${_python_torch}" "Python's torch")
    endif()
  endif()
endif()

set(LibTorch_ROOT_FOLDER)
foreach(_candidate IN LISTS libtorch_candidates)
  string(REGEX MATCH "^(.*)[|](.*)$" _ "${_candidate}")
  if(NOT LibTorch_ROOT_FOLDER AND EXISTS "${CMAKE_MATCH_1}/lib/libtorch_cpu.so" AND EXISTS "${CMAKE_MATCH_1}/include/ATen/ATen.h")
    set(LibTorch_ROOT_FOLDER "${CMAKE_MATCH_1}")
    set(LibTorch_SOURCE "${CMAKE_MATCH_2}")
    set(LibTorch_INCLUDE_DIRS "${CMAKE_MATCH_1}/include" "${CMAKE_MATCH_1}/include/torch/csrc/api/include")
    set(_libtorch_lib "${CMAKE_MATCH_1}/lib")
  endif()
endforeach()
if(NOT LibTorch_ROOT_FOLDER AND NOT _libtorch_given AND NOT _torch_dir)   # Debian's libtorch-dev
  find_path(LibTorch_DEBIAN_INCLUDE ATen/ATen.h)
  find_library(LibTorch_DEBIAN_LIBRARY torch_cpu)
  mark_as_advanced(LibTorch_DEBIAN_INCLUDE LibTorch_DEBIAN_LIBRARY)
  if(LibTorch_DEBIAN_INCLUDE AND LibTorch_DEBIAN_LIBRARY)
    set(LibTorch_ROOT_FOLDER "${LibTorch_DEBIAN_INCLUDE}")
    set(LibTorch_SOURCE "the system")
    set(LibTorch_INCLUDE_DIRS "${LibTorch_DEBIAN_INCLUDE}" "${LibTorch_DEBIAN_INCLUDE}/torch/csrc/api/include")
    cmake_path(GET LibTorch_DEBIAN_LIBRARY PARENT_PATH _libtorch_lib)
  endif()
endif()
if(LibTorch_ROOT_FOLDER)
  cmake_path(GET LibTorch_ROOT_FOLDER PARENT_PATH LibTorch_PREFIX)
  list(GET LibTorch_INCLUDE_DIRS 0 _libtorch_include)
  foreach(_header torch/headeronly/version.h torch/version.h torch/csrc/api/include/torch/version.h)
    if(NOT LibTorch_VERSION AND EXISTS "${_libtorch_include}/${_header}")
      file(STRINGS "${_libtorch_include}/${_header}" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      if("${_lines}" MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+)")
        set(LibTorch_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
      endif()
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
set(LibTorch_NOT_FOUND_MESSAGE "no folder with include/ATen/ATen.h and lib/libtorch_cpu.so among LIBTORCH, Torch_DIR, the cache of scripts/setup, Python's torch, the system")
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_ROOT_FOLDER VERSION_VAR LibTorch_VERSION
                                  REASON_FAILURE_MESSAGE "${LibTorch_NOT_FOUND_MESSAGE}")
if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  set(_after)
  foreach(_folder IN LISTS LibTorch_INCLUDE_DIRS)
    list(APPEND _after "SHELL:-idirafter ${_folder}")
  endforeach()
  # One item, so that nothing reorders it: kernels register themselves, the libraries must stay even unused.
  set_target_properties(LibTorch::cpu PROPERTIES INTERFACE_COMPILE_OPTIONS "${_after}")
  target_link_libraries(LibTorch::cpu INTERFACE
    "-Wl,--push-state,--no-as-needed,${_libtorch_lib}/libtorch_cpu.so,${_libtorch_lib}/libc10.so,--pop-state"
    "-Wl,-rpath,${_libtorch_lib}")
  if(EXISTS "${_libtorch_lib}/libtorch_cuda.so")
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu
      "-Wl,--push-state,--no-as-needed,${_libtorch_lib}/libtorch_cuda.so,${_libtorch_lib}/libc10_cuda.so,--pop-state")
  endif()
endif()
