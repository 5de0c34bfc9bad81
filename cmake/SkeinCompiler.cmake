# SPDX-License-Identifier: Apache-2.0
# What a project that uses skein should know of its compiler. Read by add_subdirectory and by find_package.
option(SKEIN_GCC12_WARNING "Warn that g++ before 13 breaks some co_await expressions" ON)
get_property(_skein_said GLOBAL PROPERTY SKEIN_GCC12_SAID)
if(SKEIN_GCC12_WARNING AND NOT _skein_said AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set_property(GLOBAL PROPERTY SKEIN_GCC12_SAID ON)
  # Beside this file where a packager moved it (share/skein); in the sources; from share/cmake/skein, from
  # lib/cmake/skein and from lib/<machine>/cmake/skein.
  set(_skein_check "scripts/check_await.py of skein's sources")
  foreach(_skein_place . ../scripts ../../skein ../../../share/skein ../../../../share/skein)
    if(EXISTS "${CMAKE_CURRENT_LIST_DIR}/${_skein_place}/check_await.py")
      set(_skein_check "${CMAKE_CURRENT_LIST_DIR}/${_skein_place}/check_await.py")
      cmake_path(NORMAL_PATH _skein_check)
      break()
    endif()
  endforeach()
  message(WARNING "skein: g++ ${CMAKE_CXX_COMPILER_VERSION} destroys an aggregate or a capturing lambda twice when it is a temporary of an "
                  "expression with co_await (GCC bug 99576), e.g. co_await skein::remote<&f>(point{1, 2}) with a std::string inside. "
                  "Name it first, or use g++ 13 or clang 16. To find such places: python3 ${_skein_check} <your sources>. "
                  "To silence this: -DSKEIN_GCC12_WARNING=OFF")
endif()
