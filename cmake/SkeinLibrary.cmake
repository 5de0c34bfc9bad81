# SPDX-License-Identifier: Apache-2.0
# The library's targets. What programs link is the same in both forms; only where bodies live differs.

# Every header and every .ipp; installed once, with the target that everything else links.
file(GLOB_RECURSE skein_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/skein/*.hpp" "${PROJECT_SOURCE_DIR}/include/skein/*.ipp")

# What both forms need from others.
add_library(skein_headers INTERFACE)
target_sources(skein_headers INTERFACE FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include" FILES ${skein_headers})
target_compile_features(skein_headers INTERFACE cxx_std_20)
target_link_libraries(skein_headers INTERFACE Threads::Threads Asio::asio SkeinBoost::headers)

# Header-only: bodies are inline, so their third parties are the user's, too.
add_library(skein_header_only INTERFACE)
target_link_libraries(skein_header_only INTERFACE skein_headers fmt::fmt-header-only nlohmann_json::nlohmann_json)

# skein_component(NAME SOURCES ... LINKS ...): a static library of the compiled form.
function(skein_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS")
  list(TRANSFORM arg_SOURCES PREPEND "${PROJECT_SOURCE_DIR}/src/")
  add_library(skein_${name} STATIC ${arg_SOURCES})
  target_link_libraries(skein_${name} PUBLIC ${arg_LINKS} PRIVATE $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # src/ says so itself, but after what a precompiled header has brought.
    target_compile_options(skein_${name} PRIVATE -Wno-subobject-linkage)
  endif()
  if(SKEIN_DEVELOPER_MODE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(skein_${name} PRIVATE -Werror=shadow)   # users compile headers with it; clang says less
  endif()
  if(NOT SKEIN_DEVELOPER_MODE)   # may end up in somebody's shared library
    set_target_properties(skein_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(skein_${name} PRIVATE -fno-semantic-interposition)
    endif()
  endif()
endfunction()

set(skein_components headers header_only runtime core sim)
if(SKEIN_COMPILED)
  # The usage side of the compiled form: programs and our precompiled headers see the same.
  add_library(skein_compiled INTERFACE)
  target_compile_definitions(skein_compiled INTERFACE SKEIN_COMPILED SKEIN_FMT_MAJOR=${fmt_VERSION_MAJOR})
  target_link_libraries(skein_compiled INTERFACE skein_headers fmt::fmt)
  skein_component(runtime SOURCES core.cpp goodput.cpp net.cpp sched.cpp proc.cpp objects.cpp rt.cpp spmd.cpp cluster.cpp program.cpp data.cpp report.cpp metrics.cpp dist.cpp train_torch_free.cpp wire.cpp LINKS skein_compiled)
  skein_component(sim SOURCES sim.cpp LINKS skein_runtime)
  list(INSERT skein_components 2 compiled)
else()
  add_library(skein_runtime INTERFACE)
  target_link_libraries(skein_runtime INTERFACE skein_header_only)
  add_library(skein_sim INTERFACE)
  target_link_libraries(skein_sim INTERFACE skein_header_only)
endif()
add_library(skein_core INTERFACE)
target_link_libraries(skein_core INTERFACE skein_runtime)

if(SKEIN_HAVE_TORCH)
  add_library(skein_torch INTERFACE)   # LibTorch and, where it is there, its CUDA half
  target_link_libraries(skein_torch INTERFACE LibTorch::cpu)
  if(TARGET LibTorch::cuda)
    target_link_libraries(skein_torch INTERFACE LibTorch::cuda)
  endif()
  add_library(skein_train_header_only INTERFACE)
  target_link_libraries(skein_train_header_only INTERFACE skein_header_only skein_torch)
  if(SKEIN_COMPILED)
    skein_component(train SOURCES train.cpp LINKS skein_runtime skein_torch)
  else()
    add_library(skein_train INTERFACE)
    target_link_libraries(skein_train INTERFACE skein_train_header_only)
  endif()
  list(APPEND skein_components torch train_header_only train)
  # Streams and arithmetic of devices (torch/cuda.hpp, train/cuda_math.hpp): of its own, so that programs for the CPU load
  # nothing of it. Bodies are in the headers.
  if(TARGET LibTorch::c10_cuda)
    add_library(skein_cuda INTERFACE)
    target_link_libraries(skein_cuda INTERFACE skein_headers skein_torch LibTorch::c10_cuda)
    target_compile_definitions(skein_cuda INTERFACE SKEIN_CUDA)
    list(APPEND skein_components cuda)
  endif()
endif()

# JPEG and PNG: a library of its own, so that programs without pictures need neither.
if(NOT skein_no_images)
  add_library(skein_images_header_only INTERFACE)
  target_link_libraries(skein_images_header_only INTERFACE skein_header_only JPEG::JPEG PNG::PNG)
  if(SKEIN_COMPILED)
    skein_component(images SOURCES data_images.cpp LINKS skein_runtime JPEG::JPEG PNG::PNG)
  else()
    add_library(skein_images INTERFACE)
    target_link_libraries(skein_images INTERFACE skein_images_header_only)
  endif()
  list(APPEND skein_components images_header_only images)
endif()

# Views in etcd: the same, for libcurl.
if(NOT skein_no_etcd)
  add_library(skein_etcd_header_only INTERFACE)
  target_link_libraries(skein_etcd_header_only INTERFACE skein_header_only CURL::libcurl)
  if(SKEIN_COMPILED)
    skein_component(etcd SOURCES spmd_etcd.cpp LINKS skein_runtime CURL::libcurl)
  else()
    add_library(skein_etcd INTERFACE)
    target_link_libraries(skein_etcd INTERFACE skein_etcd_header_only)
  endif()
  list(APPEND skein_components etcd_header_only etcd)
endif()

# HTTP: the same, for the headers of Boost.Beast.
if(NOT skein_no_http)
  add_library(skein_http_header_only INTERFACE)
  target_link_libraries(skein_http_header_only INTERFACE skein_header_only)
  if(SKEIN_COMPILED)
    skein_component(http SOURCES net_http.cpp LINKS skein_runtime)
  else()
    add_library(skein_http INTERFACE)
    target_link_libraries(skein_http INTERFACE skein_http_header_only)
  endif()
  list(APPEND skein_components http_header_only http)
endif()

# A static library, because a file set of modules needs one; it holds little more than the module's initialiser.
set(SKEIN_HAVE_MODULE FALSE)
include("${PROJECT_SOURCE_DIR}/cmake/SkeinModule.cmake")
skein_why_no_module(skein_no_module)
if(SKEIN_MODULE STREQUAL "OFF")
  set(skein_no_module "SKEIN_MODULE=OFF")
elseif(SKEIN_MODULE STREQUAL "ON" AND skein_no_module)
  message(FATAL_ERROR "SKEIN_MODULE=ON but ${skein_no_module}")
endif()
if(NOT skein_no_module)
  set(SKEIN_HAVE_MODULE TRUE)
  add_library(skein_module STATIC)
  target_sources(skein_module PUBLIC FILE_SET CXX_MODULES BASE_DIRS "${PROJECT_SOURCE_DIR}/modules" FILES "${PROJECT_SOURCE_DIR}/modules/skein.cppm")
  target_link_libraries(skein_module PUBLIC skein_runtime Threads::Threads)
  set_target_properties(skein_module PROPERTIES CXX_SCAN_FOR_MODULES ON CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  list(APPEND skein_components module)
endif()

foreach(component IN LISTS skein_components)
  add_library(skein::${component} ALIAS skein_${component})
  set_target_properties(skein_${component} PROPERTIES EXPORT_NAME ${component})
  if(NOT SKEIN_DEVELOPER_MODE)
    set_target_properties(skein_${component} PROPERTIES SYSTEM ON)   # as an installed skein: no warnings from its headers
  endif()
endforeach()
