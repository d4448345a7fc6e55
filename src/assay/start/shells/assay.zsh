# Completion of assay in zsh. Written by `assay completion install zsh`.
_assay_complete() {
    local line word
    local -a values shown folders
    for line in "${(@f)$("${~words[1]}" completion words -- "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}"; do
        word=${line%%$'\t'*}
        if [[ $line == $'\t'files ]]; then
            _files
            return
        elif [[ $word == *[/:] ]]; then
            folders+=("$word")
        elif [[ -n $word ]]; then
            values+=("$word")
            shown+=("${word}${line#$word}")
        fi
    done
    shown=("${shown[@]/$'\t'/  -- }")
    compadd -l -d shown -a values
    compadd -S '' -a folders
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }
compdef _assay_complete assay
