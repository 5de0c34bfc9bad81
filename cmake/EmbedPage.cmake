# SPDX-License-Identifier: Apache-2.0
# cmake -DFOLDER=apps/skein/page -DOUT=dashboard_page.cpp -P EmbedPage.cmake: the page's files as text in one source.
set(most 100000)   # bytes of all of them
set(all 0)
# REUSE-IgnoreStart: the licence line below is that of the file that is written.
set(text "// SPDX-License-Identifier: Apache-2.0\n// Made by cmake/EmbedPage.cmake of apps/skein/page; do not edit.\n#include <apps/skein/page.hpp>\n\nnamespace skein_program {\nnamespace {\nconstexpr page_file files[] = {\n")
# REUSE-IgnoreEnd
foreach(entry "dashboard.html|/|text/html" "dashboard.css|/dashboard.css|text/css" "dashboard.js|/dashboard.js|text/javascript" "dashboard.svg|/dashboard.svg|image/svg+xml")
  string(REPLACE "|" ";" entry "${entry}")
  list(GET entry 0 name)
  list(GET entry 1 path)
  list(GET entry 2 type)
  file(READ "${FOLDER}/${name}" content)
  file(SIZE "${FOLDER}/${name}" bytes)
  math(EXPR all "${all} + ${bytes}")
  string(FIND "${content}" ")skein_page" found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "${FOLDER}/${name} has the text )skein_page, which ends what is embedded; write it otherwise")
  endif()
  string(APPEND text "    {\"${path}\", \"${type}; charset=utf-8\",\n     R\"skein_page(${content})skein_page\"},\n")
endforeach()
if(all GREATER most)
  message(FATAL_ERROR "the page has ${all} bytes, its bound is ${most}: every head carries it")
endif()
string(APPEND text "};\n} // namespace\n\nstd::span<const page_file> page_files() noexcept { return files; }\n\n} // namespace skein_program\n")
file(WRITE "${OUT}" "${text}")
