# Completion of assay in fish. Written by `assay completion install fish`.
function __assay_complete
    set -l command (commandline -poc)[1]
    for line in ($command completion words -- (commandline -cp) 2>/dev/null)
        if test "$line" = \tfiles
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c assay -f -a '(__assay_complete)'
