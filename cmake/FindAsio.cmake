# SPDX-License-Identifier: Apache-2.0
# Standalone Asio: Debian ships it without a CMake config and without a .pc file.
# Gives Asio::asio, Asio_VERSION. Hints: Asio_ROOT, CMAKE_PREFIX_PATH.
find_path(Asio_INCLUDE_DIR asio.hpp)
if(Asio_INCLUDE_DIR AND EXISTS "${Asio_INCLUDE_DIR}/asio/version.hpp")
  # "XYYYZZ" decimal: 102201 is 1.22.1
  file(STRINGS "${Asio_INCLUDE_DIR}/asio/version.hpp" line REGEX "define ASIO_VERSION ")
  string(REGEX REPLACE ".*ASIO_VERSION ([0-9]+).*" "\\1" number "${line}")
  math(EXPR major "${number} / 100000")
  math(EXPR minor "${number} / 100 % 1000")
  math(EXPR patch "${number} % 100")
  set(Asio_VERSION "${major}.${minor}.${patch}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Asio REQUIRED_VARS Asio_INCLUDE_DIR VERSION_VAR Asio_VERSION)
mark_as_advanced(Asio_INCLUDE_DIR)
if(Asio_FOUND AND NOT TARGET Asio::asio)
  find_package(Threads REQUIRED)
  add_library(Asio::asio INTERFACE IMPORTED)
  set_target_properties(Asio::asio PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${Asio_INCLUDE_DIR}"
                                              INTERFACE_COMPILE_DEFINITIONS ASIO_STANDALONE
                                              INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
