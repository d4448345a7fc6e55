# Completion of assay in bash. Written by `assay completion install bash`.
_assay_complete() {
    local line value assay=${1/#\~/$HOME}
    COMPREPLY=()
    while IFS= read -r line; do
        value=${line%%$'\t'*}
        case $line in
            $'\t'files) compopt -o default; return ;;
            *[/:]$'\t'*) compopt -o nospace ;;
        esac
        [[ $value == *[!A-Za-z0-9_./=,:+@%-]* ]] && printf -v value %q "$value"
        COMPREPLY+=("$value")
    done < <("$assay" completion words -- "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
}
complete -F _assay_complete assay
