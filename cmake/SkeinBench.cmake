# SPDX-License-Identifier: Apache-2.0
# bench/NAME.cpp: one program each; it prints one JSON line per figure (scripts/bench runs them).
# They are built by the target skein_bench, not by default.
file(GLOB bench_sources CONFIGURE_DEPENDS bench/*.cpp)
skein_drop_parts(bench_sources)
skein_needs_torch(torch_bench ${bench_sources})
add_custom_target(skein_bench)
foreach(source IN LISTS bench_sources)
  cmake_path(GET source STEM name)
  set(kind runtime)
  if(source IN_LIST torch_bench)
    if(NOT SKEIN_HAVE_TORCH)
      message(STATUS "benchmark ${name}: off, it needs LibTorch")
      continue()
    endif()
    set(kind train)
  endif()
  skein_program(bench_${name} bench ${kind} ${source})
  target_link_libraries(bench_${name} PRIVATE skein::sim)   # ranks as threads of one process
  target_compile_definitions(bench_${name} PRIVATE SKEIN_BENCH_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}/bench")
  set_target_properties(bench_${name} PROPERTIES OUTPUT_NAME ${name} EXCLUDE_FROM_ALL ON)
  add_dependencies(skein_bench bench_${name})
endforeach()
