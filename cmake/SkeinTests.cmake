# SPDX-License-Identifier: Apache-2.0
# Tests by glob: a file in the right folder is a test, nothing is listed here.
#
#   tests/<layer>/<header>_test.cpp   one program per layer (two for layers with LibTorch parts), one ctest per file
#   tests/<layer>/main.cpp            the layer's own main (programs that re-execute themselves)
#   tests/sim/<header>_test.cpp       the simulated world itself; the other files there are one program, skein_sim:
#                                     the whole runtime in virtual time, seeded
#   tests/fuzz/<name>_fuzz.cpp        libFuzzer targets (clang); ctest replays tests/fuzz/corpus/<name> and fuzzes briefly
#   tests/compile_fail/*.cpp          must not compile, and say what the comment `// expect:` promises
#   tests/programs/*.cpp, *_test.py   programs used by tests, and tests that run whole programs
#   tests/interop/*_test.py           our files read by other people's software; exit code 77 means skipped
#   tests/docs/*_test.py              the documentation site
#   tests/checks, tests/consume       the structural checks find planted violations; skein used from outside
find_package(Catch2 3 REQUIRED)
set(SKEIN_TEST_TIMEOUT_SCALE 1 CACHE STRING "Factor on the time limit of every test (sanitizers are slow)")

# Tests check what code does, not how fast: they are compiled for a short edit loop (-O1 takes three times as long, most
# of it in clang's passes over coroutines). The library, sim and bench have the preset's flags.
set(SKEIN_TEST_OPTIONS "-O0;-g0" CACHE STRING "Compiler options of test files, after those of the build type")
set(skein_test_pch "")
if(NOT CMAKE_BUILD_TYPE MATCHES "^Rel")
  set(SKEIN_TEST_OPTIONS "")
elseif(SKEIN_PCH AND SKEIN_TEST_OPTIONS)
  set(skein_test_pch _tests)
  skein_pch_set(${skein_test_pch} "${SKEIN_TEST_OPTIONS}")
endif()

# skein_test_program(NAME FOLDER kind sources...): a program with the tests' options.
function(skein_test_program name folder kind)
  set(skein_pch_suffix ${skein_test_pch})
  skein_program(${name} ${folder} ${kind} ${ARGN})
  target_compile_options(${name} PRIVATE ${SKEIN_TEST_OPTIONS})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${name} PRIVATE skein::sim)
endfunction()

# What a test may rely on in its environment.
set(skein_test_environment "SKEIN_BUILD_DIR=${CMAKE_BINARY_DIR}" "SKEIN_SOURCE_DIR=${PROJECT_SOURCE_DIR}" "OMP_NUM_THREADS=1")
if(CMAKE_CXX_FLAGS MATCHES "sanitize=address")
  list(APPEND skein_test_environment "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1" "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1")
endif()

# skein_test(NAME labels seconds command...)
function(skein_test name labels seconds)
  add_test(NAME ${name} COMMAND ${ARGN})
  math(EXPR limit "${seconds} * ${SKEIN_TEST_TIMEOUT_SCALE}")
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${limit} SKIP_RETURN_CODE 77
                                          ENVIRONMENT "${skein_test_environment}")
endfunction()

# The words behind `mark` in the file: further ctest labels, as in `// label: strategies`.
function(skein_label out file mark)
  file(STRINGS "${file}" line REGEX "^${mark}" LIMIT_COUNT 1)
  string(REPLACE "${mark}" "" line "${line}")
  set(${out} "${line}" PARENT_SCOPE)
endfunction()

# skein_layer_tests(LAYER kind suffix sources...): one program, one ctest per source file.
function(skein_layer_tests layer kind suffix)
  set(target skein_${layer}${suffix}_tests)
  set(own_main "")
  foreach(candidate "tests/${layer}/${kind}_main.cpp" "tests/${layer}/main.cpp")
    if(NOT own_main AND EXISTS "${PROJECT_SOURCE_DIR}/${candidate}")
      set(own_main "${PROJECT_SOURCE_DIR}/${candidate}")
      skein_needs_torch(main_needs_torch "${own_main}")
      if(main_needs_torch AND NOT kind STREQUAL "train")
        set(own_main "")
      endif()
    endif()
  endforeach()
  file(GLOB support CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${layer}/*_support.cpp")
  set(sources ${ARGN})
  skein_test_program(${target} tests ${kind} ${sources} ${own_main} ${support})
  if(own_main)
    target_link_libraries(${target} PRIVATE Catch2::Catch2)
  else()
    target_link_libraries(${target} PRIVATE Catch2::Catch2WithMain)
  endif()
  if(SKEIN_BATCH GREATER 1)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")   # it takes a batch's files for headers
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${SKEIN_BATCH})
    set_source_files_properties(${own_main} ${support} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  add_dependencies(skein_tests ${target})
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM file)
    string(REGEX REPLACE "_test$" "" name "${file}")
    skein_label(more "${source}" "// label: ")
    set(seconds 180)
    if(more)   # a matrix, slow where much else runs
      set(seconds 600)
    endif()
    skein_test(${layer}.${name} "${layer};${kind};${more}" ${seconds} ${target} --filenames-as-tags "[#${file}]")
  endforeach()
endfunction()

add_custom_target(skein_tests)
add_custom_target(skein_torch_free_tests)
# The examples' own tests need their programs too.
foreach(name IN LISTS skein_runtime_examples)
  add_dependencies(skein_torch_free_tests ${name})
endforeach()
if(TARGET skein_cli)
  add_dependencies(skein_tests skein_cli)
  add_dependencies(skein_torch_free_tests skein_cli)
endif()
set(layer_kind_core core)
set(layer_kind_wire core)
foreach(layer core wire net rt cluster report data torch dist train elastic tune sim)
  file(GLOB sources CONFIGURE_DEPENDS tests/${layer}/*_test.cpp)
  skein_needs_torch(torch_sources ${sources})
  set(plain_sources ${sources})
  if(torch_sources)
    list(REMOVE_ITEM plain_sources ${torch_sources})
  endif()
  set(kind runtime)
  if(layer_kind_${layer})
    set(kind ${layer_kind_${layer}})
  endif()
  if(plain_sources)
    skein_layer_tests(${layer} ${kind} "" ${plain_sources})
    add_dependencies(skein_torch_free_tests skein_${layer}_tests)
  endif()
  if(torch_sources)
    if(SKEIN_HAVE_TORCH)
      set(suffix "_torch")
      if(NOT plain_sources OR layer STREQUAL "torch")
        set(suffix "")
      endif()
      skein_layer_tests(${layer} train "${suffix}" ${torch_sources})
    else()
      list(LENGTH torch_sources count)
      message(STATUS "tests/${layer}: ${count} files off, they need LibTorch")
    endif()
  endif()
endforeach()

# ---- the simulated world ------------------------------------------------------------------------
file(GLOB sim_sources CONFIGURE_DEPENDS tests/sim/*.cpp)
list(FILTER sim_sources EXCLUDE REGEX "_test\\.cpp$")
set(SKEIN_SIM_SEEDS 1000 CACHE STRING "Seeds that the test sim.seeds runs")
if(sim_sources)
  skein_program(skein_sim_seeds tests runtime ${sim_sources})   # optimised: it runs for minutes
  set_target_properties(skein_sim_seeds PROPERTIES OUTPUT_NAME skein_sim)
  target_include_directories(skein_sim_seeds PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(skein_sim_seeds PRIVATE skein::sim)
  add_dependencies(skein_tests skein_sim_seeds)
  add_dependencies(skein_torch_free_tests skein_sim_seeds)
  skein_test(sim.seeds "sim;runtime" 300 skein_sim_seeds --seeds ${SKEIN_SIM_SEEDS})
endif()

# ---- programs under test ------------------------------------------------------------------------
file(GLOB program_sources CONFIGURE_DEPENDS tests/programs/*.cpp)
skein_needs_torch(torch_programs ${program_sources})
foreach(source IN LISTS program_sources)
  cmake_path(GET source STEM name)
  set(kind runtime)
  if(source IN_LIST torch_programs)
    set(kind train)
  endif()
  if(NOT kind STREQUAL "train" OR SKEIN_HAVE_TORCH)
    skein_test_program(${name} tests/programs ${kind} ${source})
    add_dependencies(skein_tests ${name})
    if(kind STREQUAL "runtime")
      add_dependencies(skein_torch_free_tests ${name})
    endif()
  endif()
endforeach()

# Tests in Python: the standard library only, unless the set-up's test packages are there.
set(test_python "${Python3_EXECUTABLE}")
set(deps "$ENV{SKEIN_DEPS}")
if(NOT deps)
  set(deps "$ENV{XDG_CACHE_HOME}/skein")
  if(deps STREQUAL "/skein")
    set(deps "$ENV{HOME}/.cache/skein")
  endif()
endif()
if(EXISTS "${deps}/test-python/skein-complete")
  set(test_python "${deps}/test-python/bin/python")
endif()
file(GLOB python_tests CONFIGURE_DEPENDS tests/programs/*_test.py tests/interop/*_test.py)
foreach(source IN LISTS python_tests)
  cmake_path(GET source STEM file)
  cmake_path(GET source PARENT_PATH folder)
  cmake_path(GET folder FILENAME folder)
  string(REGEX REPLACE "_test$" "" name "${file}")
  # The label comes from a line `# label: runtime` (torch-free) or `# label: train` (the default).
  skein_label(label "${source}" "# label: ")
  if(NOT label)
    set(label train)
  endif()
  if(NOT label MATCHES "train" OR SKEIN_HAVE_TORCH)
    skein_test(${folder}.${name} "${folder};${label}" 600 "${test_python}" "${source}")
  else()
    message(STATUS "test ${folder}.${name}: off, it needs LibTorch")
  endif()
endforeach()

# ---- what must not compile ----------------------------------------------------------------------
file(GLOB compile_fail CONFIGURE_DEPENDS tests/compile_fail/*.cpp)
set(asio_flag "")
if(NOT Asio_INCLUDE_DIR STREQUAL "/usr/include")
  set(asio_flag "-isystem${Asio_INCLUDE_DIR}")
endif()
foreach(source IN LISTS compile_fail)
  cmake_path(GET source STEM name)
  skein_needs_torch(needs "${source}")
  if(needs AND NOT SKEIN_HAVE_TORCH)
    continue()
  endif()
  set(pch skein_pch_runtime)
  if(needs)
    set(pch skein_pch_torch)
  endif()
  if(TARGET ${pch})   # most of the time goes into reading headers
    set(how --like "${CMAKE_BINARY_DIR}/pch/${pch}.cpp" "${CMAKE_BINARY_DIR}")
  else()
    set(how -- "${CMAKE_CXX_COMPILER}" -std=c++20 -fsyntax-only -DSKEIN_COMPILED "-I${PROJECT_SOURCE_DIR}/include" ${asio_flag})
    if(needs)
      foreach(folder IN LISTS LibTorch_INCLUDE_DIRS)
        list(APPEND how -idirafter "${folder}")
      endforeach()
    endif()
  endif()
  skein_test(compile_fail.${name} "compile_fail;runtime" 300 "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/compile_fail.py"
             "${source}" ${how})
endforeach()

# ---- fuzzing ------------------------------------------------------------------------------------
file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/*.cpp)
if(fuzz_sources)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS "-fsanitize=fuzzer")
  set(CMAKE_REQUIRED_LINK_OPTIONS "-fsanitize=fuzzer")
  check_cxx_source_compiles("extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }" SKEIN_HAVE_FUZZER)
  unset(CMAKE_REQUIRED_FLAGS)
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
  set(SKEIN_FUZZ_OPTIONS "-O1;-g1" CACHE STRING "Compiler options of the fuzz targets, beside the sanitizers")
  if(SKEIN_HAVE_FUZZER AND NOT CMAKE_CXX_FLAGS MATCHES "sanitize")
    foreach(source IN LISTS fuzz_sources)
      cmake_path(GET source STEM name)
      string(REGEX REPLACE "_fuzz$" "" name "${name}")
      add_executable(fuzz_${name} ${source})
      target_link_libraries(fuzz_${name} PRIVATE skein::header_only skein_developer)   # every body instrumented
      target_include_directories(fuzz_${name} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/tests")
      target_compile_options(fuzz_${name} PRIVATE ${SKEIN_FUZZ_OPTIONS} -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined)
      target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer,address,undefined)
      set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/fuzz")
      add_dependencies(skein_tests fuzz_${name})
      skein_test(fuzz.${name} "fuzz;runtime" 120 "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/run_fuzz.py"
                 "$<TARGET_FILE:fuzz_${name}>" "${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name}")
    endforeach()
  else()
    message(STATUS "fuzz targets: off (they need clang's libFuzzer and no other sanitizer: package libclang-rt-19-dev)")
  endif()
endif()

# ---- every public header compiles alone -----------------------------------------------------------
# skein_headers_alone: torch-free headers, each twice in a file of its own, in the compiled form (the header-only
# form is what the consume tests and fuzz targets compile). skein_torch_headers_alone: those with LibTorch.
get_property(usage_includes TARGET Asio::asio PROPERTY INTERFACE_INCLUDE_DIRECTORIES)
add_custom_target(skein_headers_alone
  COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/headers_alone.py" torch-free "${CMAKE_CXX_COMPILER}" ${usage_includes}
  USES_TERMINAL COMMENT "each torch-free header alone")
if(SKEIN_HAVE_TORCH)
  add_custom_target(skein_torch_headers_alone
    COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/headers_alone.py" torch "${CMAKE_CXX_COMPILER}" ${usage_includes}
            --after ${LibTorch_INCLUDE_DIRS}
    USES_TERMINAL COMMENT "each header with LibTorch alone (minutes)")
endif()

# ---- the structural checks find what is planted, and skein can be used from outside ---------------
if(EXISTS "${PROJECT_SOURCE_DIR}/tests/checks/checks_test.py")
  skein_test(checks.planted "checks;runtime" 120 "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tests/checks/checks_test.py")
endif()
if(EXISTS "${PROJECT_SOURCE_DIR}/tests/checks/release_test.py")
  skein_test(checks.release "checks;runtime" 300 "${test_python}" "${PROJECT_SOURCE_DIR}/tests/checks/release_test.py")
endif()
if(EXISTS "${PROJECT_SOURCE_DIR}/tests/checks/matrix_test.py")
  skein_test(checks.matrix "checks;runtime" 60 "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tests/checks/matrix_test.py")
endif()
file(GLOB consume_tests CONFIGURE_DEPENDS tests/consume/*_test.py)
foreach(source IN LISTS consume_tests)
  cmake_path(GET source STEM file)
  string(REGEX REPLACE "_test$" "" name "${file}")
  skein_test(consume.${name} "consume;runtime" 600 "${Python3_EXECUTABLE}" "${source}" "${CMAKE_CXX_COMPILER}" "${CMAKE_COMMAND}")
endforeach()
# The documentation: its texts and its site. Skipped without what scripts/docs --setup installs.
file(GLOB docs_tests CONFIGURE_DEPENDS tests/docs/*_test.py)
foreach(source IN LISTS docs_tests)
  cmake_path(GET source STEM file)
  string(REGEX REPLACE "_test$" "" name "${file}")
  skein_test(docs.${name} "docs" 900 "${Python3_EXECUTABLE}" "${source}")
endforeach()
# They compile the library with the same flags: one after the other, the later ones find it in the compiler cache.
set_property(TEST consume.add_subdirectory consume.find_package consume.module APPEND PROPERTY RESOURCE_LOCK skein_library_of_consumers)

# The longest first, so that none of them runs alone at the end.
foreach(long train.matrix consume.arm64 consume.compiler_line consume.conan consume.find_package consume.add_subdirectory
             consume.newest_libraries programs.kill programs.phases programs.hostile programs.chaos programs.runs sim.seeds dist.communicator)
  if(TEST ${long})
    set_tests_properties(${long} PROPERTIES COST 100)
  endif()
endforeach()
