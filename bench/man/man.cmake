# SPDX-License-Identifier: Apache-2.0
# A page for each program, from its template here and what its own --help says, so that no option is missing. Not when the programs
# cannot be run here, nor without the generator of the tree that this folder comes from.
find_package(Python3 COMPONENTS Interpreter)
set(manpages ${CMAKE_CURRENT_LIST_DIR}/../../docs/man/manpages.py)
if(NOT Python3_FOUND OR CMAKE_CROSSCOMPILING OR NOT EXISTS ${manpages})
    return()
endif()

file(GLOB templates CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.1.in)
foreach(template ${templates})
    get_filename_component(name ${template} NAME_WE)
    if(TARGET ${name})
        set(program $<TARGET_FILE:${name}>)
        set(depends ${name})
    elseif(name STREQUAL "pickle-run-all")
        set(program ${CMAKE_CURRENT_LIST_DIR}/../run_all)
        set(depends ${program})
    else()
        continue()
    endif()
    add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/man/${name}.1
        COMMAND Python3::Interpreter ${manpages} program ${template} ${program} ${Pickle_VERSION} ${CMAKE_BINARY_DIR}/man
        DEPENDS ${depends} ${manpages} ${template} COMMENT "Manual page of ${name}" VERBATIM)
    list(APPEND pages ${CMAKE_BINARY_DIR}/man/${name}.1)
endforeach()
add_custom_target(man ALL DEPENDS ${pages})
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
