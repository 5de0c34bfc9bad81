# SPDX-License-Identifier: Apache-2.0
# skein_precompile(TARGET): skein's umbrella header is precompiled for the target: <skein/train.hpp> where it links
# skein::train, <skein/skein.hpp> otherwise. Most of the time that a file of a training program takes to compile goes into
# LibTorch's headers; with this they are read once, not at each edit.
#
#   skein_precompile(my_training)                        # before or after target_link_libraries
#   skein_precompile(my_tests REUSE my_training)         # the same options as my_training: nothing is compiled anew
#   skein_precompile(my_app HEADERS <skein/core.hpp>)    # these headers instead
#
# The headers come first in every file of the target, as if written there.
function(skein_precompile target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "REUSE" "HEADERS")
  if(NOT TARGET "${target}")
    message(FATAL_ERROR "skein_precompile(${target}): there is no such target; call it after add_executable or add_library")
  endif()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "skein_precompile(${target}): unknown: ${arg_UNPARSED_ARGUMENTS}; it takes TARGET [REUSE TARGET] [HEADERS <a.hpp>...]")
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")   # a compiler cache can keep it
  endif()
  if(arg_REUSE)
    target_precompile_headers(${target} REUSE_FROM ${arg_REUSE})
  elseif(arg_HEADERS)
    target_precompile_headers(${target} PRIVATE ${arg_HEADERS})
  else()   # what it links is known at the end of the folder
    cmake_language(EVAL CODE "cmake_language(DEFER CALL _skein_precompile_umbrella [[${target}]])")
  endif()
endfunction()

function(_skein_precompile_umbrella target)
  set(reached "")
  set(wanted ${target})
  while(wanted)
    list(POP_FRONT wanted one)
    if(one MATCHES "^\\$<LINK_ONLY:(.*)>$")
      set(one "${CMAKE_MATCH_1}")
    endif()
    if(NOT TARGET "${one}" OR "${one}" IN_LIST reached)
      continue()
    endif()
    list(APPEND reached "${one}")
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      if(property STREQUAL "INTERFACE_LINK_LIBRARIES" OR "${one}" STREQUAL "${target}")
        get_target_property(more "${one}" ${property})
        if(more)
          list(APPEND wanted ${more})
        endif()
      endif()
    endforeach()
  endwhile()
  if(reached MATCHES "(^|;)skein(::|_)train(_header_only)?(;|$)")
    target_precompile_headers(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:<skein/train.hpp$<ANGLE-R>>")
  elseif(reached MATCHES "(^|;)skein(::|_)(runtime|core|header_only|sim|headers)(;|$)")
    target_precompile_headers(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:<skein/skein.hpp$<ANGLE-R>>")
  else()
    message(FATAL_ERROR "skein_precompile(${target}): ${target} links no skein::train or skein::runtime; "
                        "link one, or name the headers: skein_precompile(${target} HEADERS <skein/core.hpp>)")
  endif()
endfunction()
