# SPDX-License-Identifier: Apache-2.0
# The page of a head as a static library of one source: apps/skein/page.hpp says what is in it.
set(skein_page_folder "${PROJECT_SOURCE_DIR}/apps/skein/page")
set(skein_page_source "${CMAKE_CURRENT_BINARY_DIR}/dashboard_page.cpp")
file(GLOB skein_page_files CONFIGURE_DEPENDS "${skein_page_folder}/*")
add_custom_command(OUTPUT "${skein_page_source}"
  COMMAND "${CMAKE_COMMAND}" "-DFOLDER=${skein_page_folder}" "-DOUT=${skein_page_source}" -P "${PROJECT_SOURCE_DIR}/cmake/EmbedPage.cmake"
  DEPENDS ${skein_page_files} "${PROJECT_SOURCE_DIR}/cmake/EmbedPage.cmake" VERBATIM)
add_library(skein_page STATIC EXCLUDE_FROM_ALL "${skein_page_source}")
target_link_libraries(skein_page PUBLIC skein::http)
target_include_directories(skein_page PUBLIC "${PROJECT_SOURCE_DIR}")
