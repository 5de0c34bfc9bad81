# SPDX-License-Identifier: Apache-2.0
# The program `skein`: head, nodes and tools of a cluster. Installed as the component `cli`.
set(skein_cli_sources apps/skein/main.cpp)
if(SKEIN_DEVELOPER_MODE)
  skein_program(skein_cli bin runtime ${skein_cli_sources})
else()
  add_executable(skein_cli ${skein_cli_sources})
  target_link_libraries(skein_cli PRIVATE skein::runtime)
  set_target_properties(skein_cli PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/bin")
endif()
set_target_properties(skein_cli PROPERTIES OUTPUT_NAME skein)
target_include_directories(skein_cli PRIVATE "${PROJECT_SOURCE_DIR}")
# CLI11 and nlohmann-json are headers, and only of this program.
target_link_libraries(skein_cli PRIVATE CLI11::CLI11 nlohmann_json::nlohmann_json)
if(SKEIN_INSTALL)
  install(TARGETS skein_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT cli)
endif()
