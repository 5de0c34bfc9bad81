# SPDX-License-Identifier: Apache-2.0
# The headers of Boost.PFR (part of Boost since 1.75). skein::http alone uses Boost.Beast too, where it lies beside.
# Gives SkeinBoost::headers, SkeinBoost_VERSION. Hints: SkeinBoost_ROOT, Boost_ROOT, CMAKE_PREFIX_PATH.
find_path(SkeinBoost_INCLUDE_DIR boost/pfr/core.hpp HINTS ${Boost_ROOT} ENV Boost_ROOT PATH_SUFFIXES include)
if(SkeinBoost_INCLUDE_DIR AND EXISTS "${SkeinBoost_INCLUDE_DIR}/boost/version.hpp")
  file(STRINGS "${SkeinBoost_INCLUDE_DIR}/boost/version.hpp" line REGEX "define BOOST_VERSION ")
  string(REGEX REPLACE ".*BOOST_VERSION ([0-9]+).*" "\\1" number "${line}")
  math(EXPR major "${number} / 100000")
  math(EXPR minor "${number} / 100 % 1000")
  set(SkeinBoost_VERSION "${major}.${minor}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SkeinBoost REQUIRED_VARS SkeinBoost_INCLUDE_DIR VERSION_VAR SkeinBoost_VERSION)
mark_as_advanced(SkeinBoost_INCLUDE_DIR)
if(SkeinBoost_FOUND AND NOT TARGET SkeinBoost::headers)
  add_library(SkeinBoost::headers INTERFACE IMPORTED)
  set_target_properties(SkeinBoost::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${SkeinBoost_INCLUDE_DIR}")
endif()
